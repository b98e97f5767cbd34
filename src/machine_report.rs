//! What the agent says of its machine to an API server, gathered from what is published and from
//! the machine itself.

use crate::{
    admission::{Allocatable, Capacity},
    cri::RuntimeClient,
    machine::{self, NodeIps},
    model::{CloudProvider, KUBELET_VERSION, NodeConditions, NodeView, Order as _, k8s},
    node::{NodeReport, resources},
    publish::PublishIfChanged as _,
};
use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Between two looks at the runtime's images, as the kubelet does.
const IMAGES_PERIOD: Duration = Duration::from_secs(30);
/// How long the runtime may take for it: whatever else there is to report must not wait.
const IMAGES_PATIENCE: Duration = Duration::from_secs(1);
/// Names of an image that are listed.
const IMAGE_NAMES: usize = 5;
/// What the configuration says about the report.
pub struct NodeReportSettings {
    /// `nodeStatusUpdateFrequency`
    pub period: Duration,
    /// `nodeStatusMaxImages`; `None`: no limit.
    pub max_images: Option<usize>,
    /// `--cloud-provider`
    pub cloud_provider: CloudProvider,
    /// `--node-ip` names an address.
    pub node_ip_given: bool,
    /// The port of the HTTPS API; `None`: not served.
    pub port: Option<u16>,
    /// `localStorageCapacityIsolation`
    pub local_storage: bool,
}

/// Publishes a [`NodeReport`] whenever something in it has changed.
pub struct NodeReportTask {
    pub settings: NodeReportSettings,
    pub node_name: String,
    pub capacity: Capacity,
    pub allocatable: Allocatable,
    pub runtime: RuntimeClient,
    pub view: watch::Receiver<Arc<NodeView>>,
    pub conditions: watch::Receiver<Arc<NodeConditions>>,
    pub node_ips: watch::Receiver<NodeIps>,
    pub published: watch::Sender<Option<Arc<NodeReport>>>,
}

impl NodeReportTask {
    pub async fn run(mut self, shutdown: CancellationToken) {
        let base = base(&self.node_name, (&self.capacity, &self.allocatable));
        let period = self.settings.period;
        let mut images =
            Images { due: Instant::now(), of: (String::new(), String::new()), list: Vec::new() };
        loop {
            let view = Arc::clone(&self.view.borrow_and_update());
            let runtime = (view.runtime.name.clone(), view.runtime.version.clone());
            if Instant::now() >= images.due || images.of != runtime {
                images = self.images(images, runtime).await;
            }
            let view = Arc::clone(&self.view.borrow_and_update());
            self.conditions.mark_unchanged();
            self.node_ips.mark_unchanged();
            let report = self.report(&base, &view, &images.list);
            self.published.publish_if_changed(Some(Arc::new(report)));
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(period) => {}
                changed = self.view.changed() => if changed.is_err() { return },
                changed = self.conditions.changed() => if changed.is_err() { return },
                changed = self.node_ips.changed() => if changed.is_err() { return },
            }
        }
    }

    fn report(
        &self,
        base: &NodeReport,
        view: &NodeView,
        images: &[k8s::ContainerImage],
    ) -> NodeReport {
        let runtime = &view.runtime;
        let version = match runtime.name.as_str() {
            "" => "Unknown".to_owned(),
            name => format!("{name}://{}", version_of(&runtime.version)),
        };
        NodeReport {
            addresses: addresses(&self.settings, &self.node_ips.borrow(), &self.node_name),
            cloud_provider: self.settings.cloud_provider,
            port: self.settings.port,
            local_storage: self.settings.local_storage,
            info: k8s::NodeSystemInfo { container_runtime_version: version, ..base.info.clone() },
            images: images.to_vec(),
            runtime_handlers: runtime.handlers.clone(),
            features: runtime.features.clone(),
            conditions: NodeConditions::clone(&self.conditions.borrow()),
            ..base.clone()
        }
    }

    /// The runtime's images, the largest first. What is not known stays as it was.
    async fn images(&self, before: Images, runtime: (String, String)) -> Images {
        let due = Instant::now() + IMAGES_PERIOD;
        let most = self.settings.max_images.unwrap_or(usize::MAX);
        let listed = tokio::time::timeout(IMAGES_PATIENCE, self.runtime.list_images()).await;
        let mut found = match listed {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::debug!(err = %error, "the runtime does not tell its images");
                return Images { due, of: runtime, ..before };
            }
            Err(_) => return Images { due, of: runtime, ..before },
        };
        found.order_by(|a, b| b.size.cmp(&a.size).then_with(|| b.id.cmp(&a.id)));
        let list = found.into_iter().take(most).map(|image| {
            let names = image.repo_digests.into_iter().chain(image.repo_tags).take(IMAGE_NAMES);
            k8s::ContainerImage {
                names: Some(names.collect()),
                // The API server drops a zero, which would differ for ever.
                size_bytes: i64::try_from(image.size).ok().filter(|size| *size > 0),
            }
        });
        Images { due, of: runtime, list: list.collect() }
    }
}

/// A runtime's version as a Node shows it: without what a distribution puts behind it
/// (`1.6.20~ds1`), which is no part of a semantic version.
fn version_of(told: &str) -> &str {
    let told = told.trim_start_matches('v');
    let semantic = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    told.split(|c| !semantic(c)).next().unwrap_or(told)
}

/// What the runtime was last seen to have.
struct Images {
    due: Instant,
    /// Name and version of the runtime that was asked.
    of: (String, String),
    list: Vec<k8s::ContainerImage>,
}

/// What never changes while the agent runs.
fn base(node_name: &str, (capacity, allocatable): (&Capacity, &Allocatable)) -> NodeReport {
    let (capacity, allocatable) = resources(capacity, allocatable);
    let root = Path::new("/");
    let swap = Some(machine::swap_bytes(root)).filter(|bytes| *bytes > 0);
    let info = k8s::NodeSystemInfo {
        machine_id: machine::machine_id(root),
        system_uuid: machine::system_uuid(root),
        boot_id: machine::boot_id(root),
        kernel_version: machine::kernel_release(),
        os_image: machine::os_image(root),
        container_runtime_version: String::new(),
        kubelet_version: KUBELET_VERSION.to_owned(),
        kube_proxy_version: String::new(),
        operating_system: "linux".to_owned(),
        architecture: crate::admission::go_arch(machine::ARCHITECTURE).to_owned(),
        swap: swap.map(|bytes| k8s::NodeSwapStatus { capacity: Some(bytes) }),
    };
    NodeReport { name: node_name.to_owned(), capacity, allocatable, info, ..NodeReport::default() }
}

/// `InternalIP` of each address, then `Hostname`; none without an address. Without an address in
/// `--node-ip`, an external cloud provider sets the addresses: only `Hostname`, as from the kubelet.
fn addresses(
    settings: &NodeReportSettings,
    node_ips: &[IpAddr],
    node_name: &str,
) -> Vec<k8s::NodeAddress> {
    let host_name = address("Hostname", node_name.to_owned());
    if settings.cloud_provider == CloudProvider::External && !settings.node_ip_given {
        return vec![host_name];
    }
    if node_ips.is_empty() {
        return Vec::new();
    }
    let ips = node_ips.iter().map(|ip| address("InternalIP", ip.to_string()));
    ips.chain([host_name]).collect()
}

fn address(type_: &str, address: String) -> k8s::NodeAddress {
    k8s::NodeAddress { type_: type_.to_owned(), address }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_cloud_provider_sets_the_addresses() {
        let period = Duration::from_secs(10);
        let addresses = |cloud_provider, node_ip_given| -> Vec<String> {
            let settings = NodeReportSettings {
                period,
                max_images: None,
                cloud_provider,
                node_ip_given,
                port: None,
                local_storage: true,
            };
            let found = addresses(&settings, &[[10, 0, 0, 7].into()], "n1").into_iter();
            found.map(|found| format!("{}={}", found.type_, found.address)).collect()
        };
        let both = ["InternalIP=10.0.0.7", "Hostname=n1"];
        assert_eq!(addresses(CloudProvider::External, false), ["Hostname=n1"]);
        assert_eq!(addresses(CloudProvider::External, true), both);
        assert_eq!(addresses(CloudProvider::None, false), both);
    }

    #[test]
    fn a_version_ends_where_the_distribution_begins() {
        for (told, shown) in
            [("1.6.20~ds1", "1.6.20"), ("v2.1.9", "2.1.9"), ("2.0.0-rc.1+deb", "2.0.0-rc.1+deb")]
        {
            assert_eq!(version_of(told), shown);
        }
    }
}
