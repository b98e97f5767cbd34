//! How the agent is part of a cluster: `--kubeconfig` and what goes with it.

use super::{
    names,
    read::{Reader, Zero},
    settings::{ClusterConfig, IdentityConfig, NodeTaint, Rate},
    tree::{Place, Tree},
};
use crate::model::{format_duration, parse_duration};
use serde_json::Value as Json;
use std::time::Duration;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const UPDATE: &str = "nodeStatusUpdateFrequency";
const REPORT: &str = "nodeStatusReportFrequency";
/// The lower limit of both.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
/// client-go's own rate, which a `kubeAPIQPS` of 0 stands for.
const CLIENT_QPS: u32 = 5;

/// Sets the defaults of both frequencies, where a value is missing or zero. The report gets the
/// update frequency where that is written, else 5 minutes. As for the kubelet, this is done after
/// the main file and again after the drop-ins: a later update frequency does not change the report.
pub(super) fn set_defaults(tree: &mut Tree, place: &Place) {
    let default = ClusterConfig::default();
    if is_unset(tree, REPORT) {
        // A shorter one is reported where it stands.
        let update = period(tree, UPDATE).filter(|period| *period >= SHORTEST_PERIOD);
        let report = update.unwrap_or(default.status_report);
        tree.set(REPORT, &format_duration(report).into(), place);
    }
    if is_unset(tree, UPDATE) {
        tree.set(UPDATE, &format_duration(default.status_update).into(), place);
    }
}

fn is_unset(tree: &Tree, path: &str) -> bool {
    match tree.get(path) {
        None => true,
        Some(Tree::Leaf(_, json)) => {
            json.is_null() || period(tree, path).is_some_and(|period| period.is_zero())
        }
        Some(Tree::Object(..) | Tree::List(..)) => false,
    }
}

fn period(tree: &Tree, path: &str) -> Option<Duration> {
    match tree.get(path)? {
        Tree::Leaf(_, json) => parse_duration(json.as_str()?),
        Tree::Object(..) | Tree::List(..) => None,
    }
}

/// Everything but the two kubeconfigs and the cloud provider, which only flags name.
pub(super) fn settings(r: &mut Reader<'_>) -> ClusterConfig {
    let default = ClusterConfig::default();
    let periods = SHORTEST_PERIOD..=Duration::MAX;
    let update = r.duration(UPDATE, Zero::Unset, periods.clone());
    let report = r.duration(REPORT, Zero::Unset, periods);
    let lease = r.int("nodeLeaseDurationSeconds", Zero::Unset, 1..=i64::from(i32::MAX));
    let images = r.int("nodeStatusMaxImages", Zero::Value, -1..=i64::from(i32::MAX));
    ClusterConfig {
        kubeconfig: None,
        identity: IdentityConfig {
            bootstrap: None,
            rotate: r.bool("rotateCertificates").unwrap_or(default.identity.rotate),
        },
        register: r.bool("registerNode").unwrap_or(default.register),
        attach_detach: r.bool("enableControllerAttachDetach").unwrap_or(default.attach_detach),
        taints: taints(r),
        provider_id: r.filled_text("providerID").map(|(text, _)| text.to_owned()),
        cloud_provider: default.cloud_provider,
        status_update: update.unwrap_or(default.status_update),
        status_report: report.unwrap_or(default.status_report),
        lease_seconds: lease.and_then(|n| i32::try_from(n).ok()).unwrap_or(default.lease_seconds),
        max_images: match images {
            None => default.max_images,
            Some(-1) => None,
            Some(most) => usize::try_from(most).ok(),
        },
        api: Rate {
            qps: match r.count("kubeAPIQPS", Zero::Value) {
                None => default.api.qps,
                Some(0) => CLIENT_QPS,
                Some(qps) => qps,
            },
            burst: r.count("kubeAPIBurst", Zero::Unset).unwrap_or(default.api.burst),
        },
        events: Rate {
            qps: r.count("eventRecordQPS", Zero::Value).unwrap_or(default.events.qps),
            burst: r.count("eventBurst", Zero::Unset).unwrap_or(default.events.burst),
        },
    }
}

/// `registerWithTaints`; as a flag each is `key=value:effect`.
fn taints(r: &mut Reader<'_>) -> Vec<NodeTaint> {
    let mut taints = Vec::new();
    for (index, tree) in r.items("registerWithTaints").into_iter().enumerate() {
        let path = format!("registerWithTaints[{index}]");
        let place = tree.place();
        let text = |name: &str| match tree {
            Tree::Object(_, entries) => match entries.get(name) {
                Some(Tree::Leaf(_, Json::String(text))) => text.clone(),
                Some(_) | None => String::new(),
            },
            Tree::Leaf(..) | Tree::List(..) => String::new(),
        };
        let taint = match tree {
            Tree::Leaf(_, Json::String(flag)) => from_flag(flag),
            Tree::Leaf(..) | Tree::List(..) | Tree::Object(..) => {
                NodeTaint { key: text("key"), value: text("value"), effect: text("effect") }
            }
        };
        let wrong = names::label_key(&taint.key)
            .err()
            .or_else(|| names::label_value(&taint.value).err())
            .or_else(|| {
                let known = EFFECTS.contains(&taint.effect.as_str());
                (!known).then_some("effect: must be NoSchedule, PreferNoSchedule or NoExecute")
            });
        if let Some(must) = wrong {
            let shown = format!("{}={}:{}", taint.key, taint.value, taint.effect);
            r.invalid(place, &path, Json::from(shown), must);
        }
        taints.push(taint);
    }
    taints
}

fn from_flag(text: &str) -> NodeTaint {
    let (pair, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    NodeTaint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::config::parse_and_validate;

    fn cluster(fields: &str) -> Result<ClusterConfig, String> {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n"
        );
        let loaded = parse_and_validate(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(loaded.config.cluster)
    }

    #[test]
    fn only_the_update_frequency_means_the_report_frequency_too() {
        let periods = |fields| {
            let cluster = cluster(fields).unwrap();
            (cluster.status_update.as_secs(), cluster.status_report.as_secs())
        };
        assert_eq!(periods(""), (10, 300));
        assert_eq!(periods("nodeStatusUpdateFrequency: 20s"), (20, 20));
        assert_eq!(periods("nodeStatusReportFrequency: 1m"), (10, 60));
        assert_eq!(
            periods("nodeStatusUpdateFrequency: 5s\nnodeStatusReportFrequency: 1m"),
            (5, 60)
        );
    }

    #[test]
    fn taints_are_checked() {
        let good =
            cluster("registerWithTaints: [{key: example.com/a, value: b, effect: NoExecute}]");
        let taint = NodeTaint {
            key: "example.com/a".to_owned(),
            value: "b".to_owned(),
            effect: "NoExecute".to_owned(),
        };
        assert_eq!(good.unwrap().taints, std::slice::from_ref(&taint));
        assert_eq!(from_flag("example.com/a=b:NoExecute"), taint);
        let wrong = cluster("registerWithTaints:\n- {key: a, effect: Never}").unwrap_err();
        assert!(wrong.contains("line 4"), "{wrong}");
        assert!(wrong.contains("NoSchedule, PreferNoSchedule or NoExecute"), "{wrong}");
    }

    #[test]
    fn as_many_images_as_there_are() {
        assert_eq!(cluster("").unwrap().max_images, Some(50));
        assert_eq!(cluster("nodeStatusMaxImages: -1").unwrap().max_images, None);
        assert_eq!(cluster("nodeStatusMaxImages: 0").unwrap().max_images, Some(0));
    }
}
