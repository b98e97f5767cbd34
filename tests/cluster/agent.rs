//! The real agent as a node of a real control plane: what it makes there, and what becomes of that
//! when people touch it.

use super::{
    controlplane::{ControlPlane, Options, link::Link},
    objects::{self, LEASES, NODES, PODS},
    programs,
    support::{
        agent::{NODE_NAME, Settings},
        figures::{self, Table},
        manifest::Pod,
        poll_until,
        slot::Slot,
        world::{Kind, World, full_name},
    },
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(60);

/// A world whose agent has an API server, by a link that can fail.
pub struct Member {
    pub world: World,
    pub plane: ControlPlane,
    pub link: Link,
}

impl Member {
    /// Everything but the agent runs; `None` where there is no control plane.
    pub fn prepare(options: &Options, settings: &Settings) -> Option<Self> {
        Self::prepare_by(|slot, plane| Link::start(slot, plane, 0), options, settings)
    }

    /// As [`Self::prepare`], by a link of one's own.
    pub fn prepare_by(
        link: impl FnOnce(&Slot, &ControlPlane) -> Link,
        options: &Options,
        settings: &Settings,
    ) -> Option<Self> {
        let programs = programs()?;
        let world = World::prepare(Kind::Fake, settings);
        let plane = ControlPlane::start(&world.slot, &programs, options);
        let link = link(&world.slot, &plane);
        let kubeconfig = plane.node_kubeconfig(NODE_NAME, link.address());
        world.agent.join(&kubeconfig);
        Some(Self { world, plane, link })
    }

    /// The agent runs, and its node is Ready.
    pub fn start(options: &Options) -> Option<Self> {
        Self::prepare(options, &hasty()).map(Self::started)
    }

    /// As [`Self::start`], with a static pod `web` that runs and is shown.
    pub fn with_web() -> Option<Self> {
        Self::start(&Options::default()).map(Self::shows_web)
    }

    /// The agent runs, and its node is Ready.
    #[must_use]
    pub fn started(self) -> Self {
        self.world.agent.start();
        self.wait("the node is Ready", || self.node(), ready);
        self
    }

    /// There is a static pod `web`, which runs and is shown.
    #[must_use]
    pub fn shows_web(self) -> Self {
        self.world.drop_pod(&Pod::running("web"));
        self.wait("the mirror is Ready", || self.mirror("web"), ready);
        self
    }

    pub fn node(&self) -> Value {
        self.plane.admin.find(&format!("{NODES}/{NODE_NAME}")).unwrap_or_default()
    }

    pub fn lease(&self) -> Value {
        self.plane.admin.find(&format!("{LEASES}/{NODE_NAME}")).unwrap_or_default()
    }

    /// The mirror of a static pod; null when there is none.
    pub fn mirror(&self, pod: &str) -> Value {
        self.plane.admin.find(&format!("{PODS}/{}", full_name(pod))).unwrap_or_default()
    }

    /// What `nodelet status` says of single pods and of the Node.
    pub fn notes(&self) -> String {
        let cluster = self.world.agent.status().ok().and_then(|status| status.node.cluster.clone());
        cluster.map(|cluster| cluster.notes.join("\n")).unwrap_or_default()
    }

    /// What `nodelet status` says is wrong with the way to the API server, one line each; `None`
    /// when the agent does not answer.
    pub fn troubles(&self) -> Option<String> {
        let cluster = self.world.agent.status().ok()?.node.cluster.clone()?;
        let lines =
            cluster.troubles.iter().map(|trouble| format!("{}: {}", trouble.what, trouble.error));
        Some(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Waits until the agent says that.
    #[track_caller]
    pub fn wait_told(&self, what: &str) {
        self.wait(
            &format!("{what:?} is told"),
            || self.troubles(),
            |troubles| troubles.as_ref().is_some_and(|text| text.contains(what)),
        );
    }

    /// Waits until the agent has nothing to complain of.
    #[track_caller]
    pub fn wait_untroubled(&self) {
        self.wait(
            "all is well",
            || self.troubles(),
            |troubles| troubles.as_ref().is_some_and(String::is_empty),
        );
    }

    /// Waits until the lease is renewed, from now on.
    #[track_caller]
    pub fn wait_renewed(&self) {
        let renewed = |lease: &Value| lease["spec"]["renewTime"].clone();
        let before = renewed(&self.lease());
        self.wait(
            "the lease is renewed",
            || self.lease(),
            |lease| !lease.is_null() && renewed(lease) != before,
        );
    }

    pub fn events(&self) -> Vec<Value> {
        let all = self.plane.admin.get("/api/v1/events")["items"].clone();
        all.as_array().cloned().unwrap_or_default()
    }

    /// Waits; gives what was accepted and how long it took.
    #[track_caller]
    pub fn wait<T: std::fmt::Debug>(
        &self,
        what: &str,
        look: impl FnMut() -> T,
        accept: impl FnMut(&T) -> bool,
    ) -> (T, Duration) {
        let begun = Instant::now();
        match poll_until(SOON, look, accept) {
            Ok(found) => (found, begun.elapsed()),
            Err(last) => panic!(
                "not within {SOON:?}: {what}\n--- last: {last:#?}\n--- agent: {}\n--- status: {:#?}",
                self.world.agent.log_tail(40),
                self.world.agent.status().map(|status| status.node.cluster)
            ),
        }
    }

    /// Stops the agent; nothing may be left of its pods.
    pub fn finish(self) {
        self.world.finish();
    }
}

/// For agents whose containers are killed again and again, and whose leases are looked at.
pub fn hasty() -> Settings {
    Settings::for_kind(Kind::Fake).kubelet(
        "crashLoopBackOff: { maxContainerRestartPeriod: 1s }\nnodeLeaseDurationSeconds: 8\n",
    )
}

pub fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default()
}

pub fn ready(object: &Value) -> bool {
    objects::condition(object, "Ready").is_some_and(|(status, _)| status == "True")
}

pub fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// How long something took: for people, and for docs/performance.md.
pub fn figure(what: &str, took: Duration) {
    figures::figure(Table::Cluster, what, took);
}

#[test]
fn a_node_registers_and_shows_its_pods() {
    let Some(member) = Member::prepare(&Options::default(), &Settings::for_kind(Kind::Fake)) else {
        return;
    };
    let world = &member.world;
    world.drop_pod(&Pod::running("web"));
    let begun = Instant::now();
    world.agent.start();
    let (node, _) = member.wait("the node is Ready", || member.node(), ready);
    figure("agent started → node Ready, no pod yet", begun.elapsed());
    let (mirror, _) = member.wait("the mirror is Ready", || member.mirror("web"), ready);
    let pod = world.agent.status().unwrap().pod("web").unwrap().clone();
    let hash = pod.uid.to_string();
    let annotations = &mirror["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/config.mirror"], *hash, "{mirror:#}");
    assert_eq!(mirror["metadata"]["ownerReferences"][0]["uid"], *uid(&node));
    assert_eq!(mirror["status"]["phase"], "Running");
    assert_eq!(mirror["status"]["containerStatuses"][0]["ready"], true);
    let (lease, _) = member.wait("the lease is there", || member.lease(), |l| !l.is_null());
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], *uid(&node));
    assert_eq!(lease["spec"]["holderIdentity"], NODE_NAME);
    let has = |events: &Vec<Value>, reason: &str| events.iter().any(|e| e["reason"] == reason);
    member.wait(
        "events are told",
        || member.events(),
        |events| ["Started", "NodeHasSufficientMemory"].iter().all(|reason| has(events, reason)),
    );
    // A pod that began before the node was registered is noted until the next write of pods.
    member.wait("all that was written is kept", || member.notes(), String::is_empty);
    let described = member.plane.kubectl_text(&["describe", "node", NODE_NAME]);
    for expected in ["NodeHasSufficientMemory", "web-node1"] {
        assert!(described.contains(expected), "{expected} in {described}");
    }
    assert!(!described.contains("nodelet.dev/static-only"), "{described}");

    // A person deletes the mirror: it is made again, and nothing else happens.
    let running = world.running_id("web", "main");
    let pods = ["delete", "pod", "-n", "default", "web-node1", "--wait=false"];
    member.plane.kubectl_text(&pods);
    let again = |pod: &Value| ready(pod) && uid(pod) != uid(&mirror);
    member.wait("the mirror is made again", || member.mirror("web"), again);
    assert_eq!(world.running_id("web", "main"), running);

    // Another manifest, another mirror.
    world.drop_pod(&Pod::running("web").env("VERSION", "2"));
    member.wait(
        "the mirror is that of the new manifest",
        || member.mirror("web"),
        |pod| ready(pod) && pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] != *hash,
    );

    // The Node is deleted: it comes again, with all that belongs to it.
    member.plane.kubectl_text(&["delete", "node", NODE_NAME]);
    let (new, _) = member.wait(
        "the node is registered again",
        || member.node(),
        |node| ready(node) && !uid(node).is_empty(),
    );
    assert_ne!(uid(&new), uid(&node));
    let owned = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"] == *uid(&new);
    member.wait(
        "the mirror belongs to it",
        || member.mirror("web"),
        |pod| ready(pod) && owned(pod),
    );
    member.wait("the lease belongs to it", || member.lease(), owned);

    // Killed: the next one takes everything over.
    let (mirror, running) = (member.mirror("web"), world.running_id("web", "main"));
    let before = member.lease()["spec"]["renewTime"].clone();
    world.agent.kill();
    let begun = Instant::now();
    world.agent.start();
    world.wait_running("web");
    figure("agent killed and started → pod seen again", begun.elapsed());
    let renewed = |lease: &Value| !lease.is_null() && lease["spec"]["renewTime"] != before;
    member.wait("the lease is renewed", || member.lease(), renewed);
    assert_eq!(
        (uid(&member.mirror("web")), world.running_id("web", "main")),
        (uid(&mirror), running)
    );

    world.remove("web.yaml");
    member.wait("the mirror is gone", || member.mirror("web"), Value::is_null);
    member.finish();
}

#[test]
fn an_external_cloud_provider_keeps_its_addresses() {
    let often = "nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 2s\n";
    let settings = Settings::for_kind(Kind::Fake).kubelet(often);
    let Some(member) = Member::prepare(&Options::default(), &settings) else { return };
    let flags = ["--cloud-provider=external", "--node-ip=127.0.0.7", "--provider-id=cloud://1"];
    flags.iter().for_each(|flag| member.world.agent.add_flag((*flag).to_owned()));
    let member = member.started();
    let node = member.node();
    assert_eq!(node["spec"]["providerID"], "cloud://1");
    let annotations = &node["metadata"]["annotations"];
    assert_eq!(annotations["alpha.kubernetes.io/provided-node-ip"], "127.0.0.7", "{node:#}");
    let uninitialized = "node.cloudprovider.kubernetes.io/uninitialized";
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(taints.iter().any(|taint| taint["key"] == uninitialized), "{node:#}");
    let ours = json!([{ "type": "InternalIP", "address": "127.0.0.7" },
                      { "type": "Hostname", "address": NODE_NAME }]);
    assert_eq!(node["status"]["addresses"], ours);

    // What a cloud controller manager does.
    let theirs = json!([{ "type": "InternalIP", "address": "203.0.113.5" }]);
    let body = json!({ "status": { "addresses": [{ "$patch": "replace" }, theirs[0]] } });
    member.plane.admin.patch(&format!("{NODES}/{NODE_NAME}/status"), &body).unwrap().ok();
    let heartbeat = |node: &Value| -> String {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.filter(|condition| condition["type"] == "Ready");
        ready.map(|ready| ready["lastHeartbeatTime"].to_string()).collect()
    };
    // The first status may have been under way.
    for _ in 0..2 {
        let before = heartbeat(&member.node());
        let posted = |node: &Value| heartbeat(node) != before;
        let (node, _) = member.wait("a status is written", || member.node(), posted);
        assert_eq!(node["status"]["addresses"], theirs);
    }
    member.finish();
}

#[test]
fn api_pods_are_declined_on_a_static_only_node() {
    let mut settings = hasty();
    settings.nodelet.push_str("apiPods: false\n");
    let Some(member) = Member::prepare(&Options::default(), &settings) else { return };
    let member = member.started();
    let taints = member.node()["spec"]["taints"].as_array().unwrap().clone();
    assert!(taints.iter().any(|taint| taint["key"] == "nodelet.dev/static-only"), "{taints:?}");
    member.plane.kubectl_text(&["create", "serviceaccount", "default", "-n", "default"]);
    let pod = objects::pod("stray", NODE_NAME);
    member.plane.admin.create(PODS, &pod).unwrap().ok();
    let path = format!("{PODS}/stray");
    let of_stray = |event: &Value| event["involvedObject"]["name"] == "stray";
    member.wait("people are told", || member.events(), |events| events.iter().any(of_stray));
    assert_eq!(member.plane.admin.get(&path)["status"]["phase"], "Pending");
    member.wait("it is noted", || member.notes(), |notes| notes.contains("stray"));
    member.plane.kubectl_text(&["delete", "pod", "stray", "--wait=false"]);
    member.wait("it is gone", || member.plane.admin.find(&path), Option::is_none);
    member.finish();
}

/// Anybody who may write pods can give a pod the annotation of a mirror pod, with the hash of any
/// static pod.
#[test]
fn a_mirror_pod_with_a_wrong_hash_is_deleted_or_replaced() {
    let Some(member) = Member::with_web() else { return };
    let world = &member.world;
    let (web, running) = (member.mirror("web"), world.running_id("web", "main"));
    let hash = |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone();
    let mirror = |name: &str, of: &Value| {
        let mut pod = objects::mirror(name, &member.node());
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = of.clone();
        member.plane.admin.create(PODS, &pod).unwrap().ok()
    };
    // No static pod has its name.
    mirror("orphan", &hash(&web));
    let orphan = || member.plane.admin.find(&format!("{PODS}/orphan"));
    member.wait("the orphan is gone", orphan, Option::is_none);

    // Those of static pods, made while the agent is down: with another pod's hash, and with that of
    // an earlier manifest.
    world.drop_pod(&Pod::running("db"));
    let (db, _) = member.wait("the mirror of db is Ready", || member.mirror("db"), ready);
    world.agent.kill();
    let delete = ["delete", "pod", "web-node1", "db-node1", "--force", "--grace-period=0"];
    member.plane.kubectl_text(&delete);
    let wrong = [mirror("web-node1", &hash(&db)), mirror("db-node1", &"earlier".into())];
    world.agent.start();
    for ((name, right), wrong) in [("web", &web), ("db", &db)].into_iter().zip(&wrong) {
        let replaced = |pod: &Value| ready(pod) && uid(pod) != uid(wrong);
        let (now, _) = member.wait("the mirror is replaced", || member.mirror(name), replaced);
        assert_eq!((hash(&now), &now["status"]["phase"]), (hash(right), &"Running".into()));
    }
    assert_eq!(world.running_id("web", "main"), running, "a mirror pod stops nothing");
    member.finish();
}

pub fn labelled(name: &str, app: &str) -> Value {
    let mut pod = objects::pod(name, "");
    pod["metadata"]["labels"] = serde_json::json!({ "app": app });
    pod
}

#[test]
fn what_the_api_server_refuses_is_left_out_of_the_mirror() {
    let mut settings = hasty();
    settings.nodelet.push_str("runtimeClasses: { second: other }\n");
    let Some(member) = Member::prepare(&Options::default(), &settings) else { return };
    let member = member.started();
    for (name, field, value) in [
        ("web", "priority", serde_json::json!(1000)),
        ("classy", "runtimeClassName", serde_json::json!("second")),
    ] {
        member.world.drop_pod(&Pod::running(name).set(field, value));
        let (mirror, _) = member.wait("there is a mirror", || member.mirror(name), ready);
        let left_out = mirror["metadata"]["annotations"]["nodelet.dev/left-out"].as_str().unwrap();
        assert!(left_out.contains(field), "{left_out}");
    }
    // A namespace that is not there: told, and made good when it is.
    member.world.drop_pod(&Pod::running("shop").meta("namespace", "shop"));
    member.wait("people are told", || member.notes(), |notes| notes.contains("shop"));
    member.plane.kubectl_text(&["create", "namespace", "shop"]);
    let path = "/api/v1/namespaces/shop/pods/shop-node1";
    member.wait("the mirror follows", || member.plane.admin.find(path).unwrap_or_default(), ready);
    // A webhook that can't be reached is in the way of one pod: told, and no pod beside it waits.
    member.plane.kubectl_text(&["create", "serviceaccount", "default", "-n", "default"]);
    member
        .plane
        .admin
        .create(objects::WEBHOOKS, &objects::dead_webhook("app", "minded"))
        .unwrap()
        .ok();
    member.wait(
        "the webhook is in force",
        || {
            member
                .plane
                .admin
                .create(&format!("{PODS}?dryRun=All"), &labelled("trial", "minded"))
                .unwrap()
                .status
        },
        |status| *status == 500,
    );
    member.world.drop_pod(&Pod::running("minded"));
    member.wait("people are told", || member.notes(), |notes| notes.contains("webhook"));
    member.world.drop_pod(&Pod::running("beside"));
    member.wait("the pod beside it is shown", || member.mirror("beside"), ready);
    member.wait_untroubled();
    member.plane.admin.delete(&format!("{}/dead", objects::WEBHOOKS)).unwrap().ok();
    member.wait("it is shown as well", || member.mirror("minded"), ready);
    member.finish();
}
