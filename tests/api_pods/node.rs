//! A node that runs what the scheduler binds to it.

pub use super::controlplane::objects::{WAITS, condition, is_ready, plain, shell};

use super::{
    controlplane::{ControlPlane, Options, client::Client, link::Link},
    support::{
        agent::{NODE_NAME, Settings},
        skip_without_containerd,
        skips::skip_without,
        world::{Kind, World},
    },
    upstream,
};
use hyper::Method;
use nodelet::cri::v1;
use serde_json::{Value, json};
use std::time::Duration;

/// Long enough for whatever a cluster does on a busy machine with two cores.
pub const SOON: Duration = Duration::from_secs(120);
/// The collection of pods that the tests make.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// The settings of an agent in these clusters.
pub fn settings() -> Settings {
    Settings::for_kind(Kind::Real).kubelet(
        "crashLoopBackOff: { maxContainerRestartPeriod: 1s }\nclusterDNS: [10.213.0.10]\n\
         clusterDomain: cluster.local\n",
    )
}

/// One node and its cluster. Fields are dropped in this order.
pub struct Node {
    pub world: World,
    pub plane: ControlPlane,
    /// The way from the agent to the API server.
    pub link: Link,
}

impl Node {
    /// A node that runs, in a cluster with all its controllers; `None` when the test must be
    /// skipped.
    pub fn start() -> Option<Self> {
        Self::start_with("", &[])
    }

    /// As [`Self::start`], with more lines of the KubeletConfiguration and more flags of
    /// kube-controller-manager.
    pub fn start_with(lines: &str, controllers: &[&str]) -> Option<Self> {
        let node = Self::prepare(lines, controllers)?;
        node.world.agent.start();
        node.wait_ready();
        Some(node)
    }

    /// As [`Self::start_with`], but the agent does not run yet.
    pub fn prepare(lines: &str, controllers: &[&str]) -> Option<Self> {
        Self::prepare_with(Kind::Real, lines, &Options::default().controller_manager(controllers))
    }

    /// As [`Self::prepare`], on another runtime and with other options of the control plane, which
    /// always has a scheduler.
    pub fn prepare_with(kind: Kind, lines: &str, options: &Options) -> Option<Self> {
        if skip_without_containerd() {
            return None;
        }
        let Some(programs) = upstream::control_plane() else {
            skip_without(&[(false, "a control plane or Go to build it")]);
            return None;
        };
        let settings = settings().kubelet(lines);
        let world = World::prepare(kind, &settings);
        let plane = ControlPlane::start(&world.slot, &programs, &options.clone().scheduler());
        let link = Link::start(&world.slot, &plane, 0);
        world.agent.join(&plane.node_kubeconfig(NODE_NAME, link.address()));
        let clients = world.slot.dir().join("clients.crt");
        std::fs::write(&clients, plane.authority().pem()).unwrap();
        world.agent.add_flag(format!("--client-ca-file={}", clients.display()));
        Some(Self { world, plane, link })
    }

    pub fn admin(&self) -> &Client {
        &self.plane.admin
    }

    /// Waits until the node is Ready, and pods of namespace `default` can be made.
    #[track_caller]
    pub fn wait_ready(&self) {
        let ready = || {
            let node = self.admin().find(&format!("/api/v1/nodes/{NODE_NAME}"))?;
            condition(&node, "Ready").map(|condition| condition["status"].clone())
        };
        self.wait("the node is Ready", ready, |ready| *ready == Some(json!("True")));
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        self.wait("the account is there", || self.admin().find(account), Option::is_some);
    }

    /// Waits until something is as wanted; shows the agent's log when it does not become so.
    #[track_caller]
    pub fn wait<T: std::fmt::Debug>(
        &self,
        what: &str,
        mut look: impl FnMut() -> T,
        accept: impl FnMut(&T) -> bool,
    ) -> T {
        let look = || {
            self.world.agent.revive();
            look()
        };
        match super::support::poll_until(SOON, look, accept) {
            Ok(value) => value,
            Err(last) => {
                panic!(
                    "not within {SOON:?}: {what}\n--- last: {last:#?}\n--- the agent's log: {}",
                    self.world.agent.log_tail(60)
                )
            }
        }
    }

    /// Makes a pod; the scheduler binds it.
    #[track_caller]
    pub fn create(&self, pod: &Value) -> Value {
        self.admin().create(PODS, pod).unwrap().ok()
    }

    /// The pod as the API server has it; `None` when it is gone.
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.admin().find(&format!("{PODS}/{name}"))
    }

    /// Waits until a pod is as wanted.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, what: &str, accept: impl Fn(&Value) -> bool) -> Value {
        let seen = self.wait(
            &format!("pod {name} {what}"),
            || self.pod(name),
            |pod| pod.as_ref().is_some_and(&accept),
        );
        seen.unwrap()
    }

    #[track_caller]
    pub fn wait_pod_ready(&self, name: &str) -> Value {
        self.wait_pod(name, "is Ready", is_ready)
    }

    /// Ids of the containers of a pod that run.
    pub fn running(&self, pod: &str) -> Vec<String> {
        let all = self.world.cri.containers();
        let running = all.into_iter().filter(|one| {
            one.state() == v1::ContainerState::ContainerRunning
                && one.labels.get("io.kubernetes.pod.name").is_some_and(|name| name == pod)
        });
        running.map(|one| one.id).collect()
    }

    /// Waits until the object of a pod is gone, and then that nothing of it is left here.
    #[track_caller]
    pub fn wait_pod_gone(&self, name: &str) {
        self.wait(&format!("pod {name} is gone"), || self.pod(name), Option::is_none);
        let left = || {
            let all = self.world.cri.containers();
            let names = all
                .into_iter()
                .filter_map(|container| container.labels.get("io.kubernetes.pod.name").cloned());
            names.filter(|of| of == name).count()
        };
        self.wait(&format!("nothing of pod {name} is left"), left, |left| *left == 0);
    }

    /// Deletes a pod with the grace period of its specification.
    #[track_caller]
    pub fn delete(&self, name: &str) {
        self.admin().send(Method::DELETE, &format!("{PODS}/{name}"), None).unwrap().ok();
    }

    /// What a command prints in a container of a pod, through the API server.
    #[track_caller]
    pub fn exec(&self, pod: &str, command: &[&str]) -> String {
        let mut words = vec!["exec", pod, "--"];
        words.extend_from_slice(command);
        self.plane.kubectl_text(&words)
    }

    /// As [`Self::exec`], in the container with this name.
    #[track_caller]
    pub fn exec_in(&self, pod: &str, container: &str, command: &[&str]) -> String {
        let mut words = vec!["exec", pod, "--container", container, "--"];
        words.extend_from_slice(command);
        self.plane.kubectl_text(&words)
    }

    /// Removes every pod through the API, and checks that nothing is left on the host.
    #[track_caller]
    pub fn finish(self) {
        let kinds =
            ["cronjobs", "deployments", "statefulsets", "daemonsets", "jobs", "replicasets"];
        for kind in kinds {
            self.plane.kubectl_text(&["delete", kind, "--all", "--wait=false"]);
        }
        self.plane.kubectl_text(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
        let left = || self.admin().get(PODS)["items"].as_array().map(Vec::len);
        self.wait("every pod is gone", left, |left| *left == Some(0));
        self.wait("the host is clean", || self.world.leaks(), Vec::is_empty);
    }
}
