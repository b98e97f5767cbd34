//! Pods that come from the API server: one, and Deployments that come and go, as a watcher sees
//! them; then what a full node of them costs while nothing happens.
//!
//! ```text
//!   Deployment ─► controllers ─► added ─► scheduler ─► bound ─► candidate ─► started ─► Ready
//! ```
//!
//! One watch of the administrator's tells what the API server shows. It goes to the API server
//! directly; what the candidate asks goes by a link that counts.

use crate::{
    api_pod_floor::ApiPodFloor,
    api_pod_rows::{ApiPodRow, REPLICAS},
    cluster::{Programs, is, node_path},
    controlplane::{ControlPlane, Options, client::Client, link::Link, pki::Validity},
    measure::{CALM, Plan, cpu_percent},
    objects::PODS,
    requests::{Asked, QUIET},
    results::{Figures, Row},
    sightings::{Sighting, Sightings, percentile},
    stage::{Background, Candidate, Stage, now, pause, seconds},
    support::{agent::NODE_NAME, manifest::Pod},
};
use hyper::Method;
use serde_json::{Value, json};
use std::{fs, sync::Arc, time::Duration};
use tokio::sync::watch;

/// How often the watcher's notes are read; the times are its own.
const PACE: Duration = Duration::from_millis(20);
/// After pods have come or gone, until what follows from it is over.
const SETTLE: Duration = Duration::from_secs(5);
/// Of the Deployment that comes and goes first, so that nobody pays for what only the first pods
/// cost the control plane.
const WARM_UP: usize = 4;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// One round of pods and Deployments that come and go.
pub fn api_pods(candidate: Candidate, plan: &Plan, programs: Programs<'_>, figures: &mut Figures) {
    let Some(act) = Act::begin(candidate, plan, programs) else { return };
    let pod = Pod::running("pod").set("automountServiceAccountToken", false);
    act.grow("warm-up", &pod, WARM_UP);
    act.shrink("warm-up", WARM_UP);
    for number in 0..plan.singles {
        // Spread over the phases of loops that wake up every second.
        pause(Duration::from_millis(2000 + u64::try_from(number).unwrap() * 370 % 1000));
        act.single(&pod, figures);
    }
    for (place, replicas) in REPLICAS.into_iter().enumerate() {
        for _ in 0..plan.singles {
            pause(SETTLE);
            act.deployment(place, &pod, replicas.min(plan.pods), figures);
        }
    }
}

/// One round of a full node that is idle; nothing of the floor is measured.
pub fn idle_api_pods(
    candidate: Candidate,
    plan: &Plan,
    programs: Programs<'_>,
    figures: &mut Figures,
) {
    if candidate == Candidate::Floor {
        return;
    }
    let Some(act) = Act::begin(candidate, plan, programs) else { return };
    act.full(figures);
}

/// Fields are dropped in this order. What watches ends before the stage, which ends whatever runs
/// in its slot.
struct Act<'a> {
    candidate: Candidate,
    plan: &'a Plan,
    watcher: Watcher,
    _floor: Option<ApiPodFloor>,
    stage: Stage,
    link: Link,
    plane: ControlPlane,
}

impl<'a> Act<'a> {
    /// A candidate on a stage of its own, whose node takes pods; `None` without a control plane.
    fn begin(candidate: Candidate, plan: &'a Plan, programs: Programs<'_>) -> Option<Self> {
        let programs_of_plane = programs.plane?;
        // Without its address the kubelet warns of every pod now and then.
        let mut stage = Stage::with(candidate, programs.kubelet, "clusterDNS: [192.0.2.1]\n");
        // The floor renews no lease.
        let controllers = ["--node-monitor-grace-period=2h"];
        let options = Options::default().controller_manager(&controllers).scheduler();
        let plane = ControlPlane::start(stage.slot(), programs_of_plane, &options);
        let link = Link::start(stage.slot(), &plane, 0);
        let watcher = Watcher::start(&plane);
        let at_a_time = plan.floor_at_a_time;
        let floor = stage.floor().map(|floor| ApiPodFloor::start(floor, &plane, &link, at_a_time));
        if floor.is_none() {
            stage.join(&plane.node_kubeconfig(NODE_NAME, link.address()));
            stage.start();
        }
        stage.wait("the node takes pods", PACE, || {
            let node = plane.admin.find(&node_path())?;
            let account = plane.admin.find(ACCOUNT);
            let is_open = is(&node, "Ready", "True") && node["spec"]["taints"].is_null();
            (is_open && account.is_some()).then_some(())
        });
        Some(Self { candidate, plan, watcher, _floor: floor, stage, link, plane })
    }

    /// One pod comes and goes on a node that has no other.
    fn single(&self, pod: &Pod, figures: &mut Figures) {
        self.watcher.forget();
        let begun = now();
        self.plane.admin.create(PODS, pod.value()).unwrap().ok();
        self.wait("the pod is Ready", 1, |pod| pod.ready);
        let ready = self.watcher.seen().last(|pod| pod.ready).unwrap();
        let started = *self.stage.starts().values().next().unwrap();
        self.add(ApiPodRow::One, seconds(begun, ready), figures);
        self.add(ApiPodRow::OneShown, seconds(started, ready), figures);
        pause(Duration::from_secs(1));
        let begun = now();
        self.plane.admin.send(Method::DELETE, &format!("{PODS}/pod"), None).unwrap().ok();
        self.wait("the pod is gone", 1, |pod| pod.gone);
        let gone = self.watcher.seen().last(|pod| pod.gone).unwrap();
        self.add(ApiPodRow::OneGone, seconds(begun, gone), figures);
    }

    /// A Deployment comes and goes.
    fn deployment(&self, place: usize, pod: &Pod, replicas: usize, figures: &mut Figures) {
        let asked = Asked::during(&self.link, || {
            let begun = self.grow("web", pod, replicas);
            let seen = self.watcher.seen();
            let all = seconds(begun, seen.last(|pod| pod.ready).unwrap());
            self.add(ApiPodRow::AllReady(place), all, figures);
            let took = seen.times(|_, pod| Some(pod.added), |pod| pod.ready);
            self.add(ApiPodRow::PodReady(place), percentile(&took, 50), figures);
            self.add(ApiPodRow::SlowPodReady(place), percentile(&took, 99), figures);
            let starts = self.stage.starts();
            let started = |name: &str, _: &Sighting| starts.get(name).copied();
            let shown = seen.times(started, |pod| pod.ready);
            self.add(ApiPodRow::Shown(place), percentile(&shown, 99), figures);
            tell("created → added", &seen.times(|_, _| Some(begun), |pod| Some(pod.added)));
            tell("added → bound", &seen.times(|_, pod| Some(pod.added), |pod| pod.bound));
            tell("bound → Ready", &seen.times(|_, pod| pod.bound, |pod| pod.ready));
            tell("started → Ready", &shown);
            pause(SETTLE);
            let begun = self.shrink("web", replicas);
            let seen = self.watcher.seen();
            let all = seconds(begun, seen.last(|pod| pod.gone).unwrap());
            self.add(ApiPodRow::AllGone(place), all, figures);
            let took = seen.times(|_, pod| pod.deleting, |pod| pod.gone);
            self.add(ApiPodRow::SlowPodGone(place), percentile(&took, 99), figures);
            tell("deletion → deleting", &seen.times(|_, _| Some(begun), |pod| pod.deleting));
            tell("deleting → gone", &took);
            pause(SETTLE);
        });
        #[expect(clippy::cast_precision_loss, reason = "a hundred")]
        self.add(ApiPodRow::Requests(place), asked.of_pods / replicas as f64, figures);
    }

    /// Nothing happens to a full node whose pods have a token each and share a ConfigMap.
    fn full(&self, figures: &mut Figures) {
        let config_map = json!({ "metadata": { "name": "settings" }, "data": { "level": "info" } });
        self.plane.admin.create(CONFIG_MAPS, &config_map).unwrap().ok();
        let volumes = json!([{ "name": "settings", "configMap": { "name": "settings" } }]);
        let mounts = json!([{ "name": "settings", "mountPath": "/settings" }]);
        let pod = Pod::running("pod").set("volumes", volumes);
        let pod = pod.set("containers/0/volumeMounts", mounts);
        self.grow("full", &pod, self.plan.pods);
        pause(CALM);
        let agent = self.stage.agent().unwrap();
        let asked = Asked::during(&self.link, || {
            self.add(ApiPodRow::FullCpu, cpu_percent(agent, QUIET), figures);
        });
        self.add(ApiPodRow::FullRss, agent.memory_mib("VmRSS"), figures);
        self.add(ApiPodRow::FullRequests, asked.requests, figures);
        self.add(ApiPodRow::FullKibCarried, asked.kib, figures);
        self.config(figures);
    }

    /// The ConfigMap of a full node's pods is changed; one of them is looked at.
    fn config(&self, figures: &mut Figures) {
        let inside = format!("/proc/{}/root/settings/level", self.stage.any_victim().pid());
        for number in 0..self.plan.singles {
            // Spread over the phases of loops that wake up every second.
            pause(SETTLE + Duration::from_millis(370 * u64::try_from(number).unwrap()));
            let value = format!("level-{number}");
            let begun = now();
            let change = json!({ "data": { "level": value } });
            self.plane.admin.patch(&format!("{CONFIG_MAPS}/settings"), &change).unwrap().ok();
            let seen = self.stage.wait("the container reads it", Duration::from_millis(2), || {
                let read = fs::read_to_string(&inside).unwrap_or_default();
                (read == value).then(now)
            });
            self.add(ApiPodRow::ConfigSeen, seconds(begun, seen), figures);
        }
    }

    /// Creates a Deployment, and waits until all its pods are Ready; gives the moment before.
    fn grow(&self, name: &str, pod: &Pod, replicas: usize) -> i64 {
        self.watcher.forget();
        let begun = now();
        let deployment = deployment(name, pod, replicas);
        self.plane.admin.create(DEPLOYMENTS, &deployment).unwrap().ok();
        self.wait("all pods are Ready", replicas, |pod| pod.ready);
        begun
    }

    /// Deletes a Deployment, and waits until its pods are gone; gives the moment before.
    fn shrink(&self, name: &str, replicas: usize) -> i64 {
        let begun = now();
        self.plane.admin.send(Method::DELETE, &format!("{DEPLOYMENTS}/{name}"), None).unwrap().ok();
        self.wait("all pods are gone", replicas, |pod| pod.gone);
        begun
    }

    fn wait(&self, what: &str, pods: usize, sight: impl Fn(&Sighting) -> Option<i64>) {
        self.stage.wait(what, PACE, || (self.watcher.count(&sight) == pods).then_some(()));
    }

    fn add(&self, row: ApiPodRow, value: f64, figures: &mut Figures) {
        figures.add(Row::ApiPod(row), self.candidate, value);
    }
}

/// A Deployment of pods like this one.
fn deployment(name: &str, pod: &Pod, replicas: usize) -> Value {
    let labels = json!({ "app": name });
    json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod.value()["spec"] },
        },
    })
}

/// Tells on the terminal what a step took.
fn tell(step: &str, took: &[f64]) {
    let [half, most] = [50, 99].map(|percent| percentile(took, percent));
    crate::progress(&format!("        {step:20} p50 {half:.3} s, p99 {most:.3} s"));
}

/// Sees every event of pods when it comes.
struct Watcher {
    seen: Arc<watch::Sender<Sightings>>,
    _watching: Background,
}

impl Watcher {
    fn start(plane: &ControlPlane) -> Self {
        let identity = plane.authority().client("watcher", &["system:masters"], Validity::Long);
        let client: Client = plane.client(&identity);
        let seen = Arc::new(watch::Sender::default());
        let notes = Arc::clone(&seen);
        let watching = async move {
            let note = |event: &Value| {
                let at = now();
                notes.send_modify(|seen: &mut Sightings| seen.note(event, at));
            };
            let watched = client.watch(&format!("{PODS}?watch=1&timeoutSeconds=86400"), note).await;
            panic!("the watch is over: {watched:?}");
        };
        Self { seen, _watching: Background::start(watching) }
    }

    fn forget(&self) {
        self.seen.send_replace(Sightings::default());
    }

    fn seen(&self) -> Sightings {
        self.seen.borrow().clone()
    }

    fn count(&self, sight: impl Fn(&Sighting) -> Option<i64>) -> usize {
        self.seen.borrow().count(sight)
    }
}
