//! The act in a cluster: each agent as a node of a real control plane, by a link that counts what
//! it asks for and can fail.

use crate::{
    controlplane::{ControlPlane, Options, link::Link},
    measure::{CALM, FEW, Plan, cpu_percent, pods},
    objects::{self, LEASES, NODES, PODS},
    requests::{Asked, QUIET},
    results::{Figures, Row},
    stage::{Candidate, Moment, SmallDisk, Stage, name_of, now, pause, seconds},
    support::{agent::NODE_NAME, manifest::Pod, world::full_name},
};
use serde_json::Value;
use std::{fs, path::Path, time::Duration};

/// How long the API server, the way to it or the agent is away.
const AWAY: Duration = Duration::from_secs(60);
/// How long lies between two looks at what the API server shows: a figure is at most this and one
/// answer too large.
const PACE: Duration = Duration::from_millis(20);
/// Of the small file system under the root directory: all of it, what has to stay free, what
/// somebody puts there.
const DISK: &str = "size=256m";
const DISK_FREE_MIB: u64 = 64;
const DISK_FILLED_MIB: u64 = 225;
/// Its size afterwards, so far from the threshold that it is read as seldom as it ever is.
const DISK_LATER: &str = "size=64g";

/// The programs that it needs.
#[derive(Clone, Copy)]
pub struct Programs<'a> {
    /// A directory with etcd, kube-apiserver and so on, where one is needed and there is one.
    pub plane: Option<&'a Path>,
    /// The upstream kubelet.
    pub kubelet: Option<&'a Path>,
}

/// One round of it.
pub fn cluster(candidate: Candidate, plan: &Plan, programs: Programs<'_>, figures: &mut Figures) {
    let Some(programs_of_plane) = programs.plane else { return };
    // Without its address the kubelet warns of every pod now and then.
    let mut lines = format!(
        "evictionHard: {{ nodefs.available: {DISK_FREE_MIB}Mi }}\nevictionPressureTransitionPeriod: 1s\n\
         clusterDNS: [192.0.2.1]\n"
    );
    if candidate == Candidate::Nodelet {
        // As the kubelet has it: the disk of the images may be full.
        lines += "imageGCHighThresholdPercent: 100\nimageGCLowThresholdPercent: 99\n";
    }
    let mut stage = Stage::with(candidate, programs.kubelet, &lines);
    let options = Options::default().controller_manager(&[]);
    let plane = ControlPlane::start(stage.slot(), programs_of_plane, &options);
    let link = Link::start_in_namespace(stage.slot(), &plane);
    stage.join(&plane.node_kubeconfig(NODE_NAME, link.address()));
    let disk = SmallDisk::over(stage.root_dir(), DISK);
    let act = Act { candidate, plan, stage, plane, link, disk };
    act.play(figures);
}

/// Fields are dropped in this order: the agent first.
struct Act<'a> {
    candidate: Candidate,
    plan: &'a Plan,
    stage: Stage,
    link: Link,
    plane: ControlPlane,
    disk: SmallDisk,
}

impl Act<'_> {
    fn play(&self, figures: &mut Figures) {
        let begun = self.stage.start();
        let ready = self.wait("the node is Ready", || is(&self.node(), "Ready", "True"));
        figures.add(Row::Ready, self.candidate, seconds(begun, ready));
        self.condition(figures);
        pause(CALM);
        self.idle(0, self.plan.idle, figures);

        let all = pods("pod", self.plan.pods);
        let few = FEW.min(self.plan.pods);
        let one = &all[..1];
        self.stage.drop_pods(one);
        let shown = self.wait("the pod is shown", || self.missing(one).is_none());
        figures.add(Row::Shown, self.candidate, seconds(self.stage.started(one)[0], shown));
        self.drop_pods(&all[1..few]);
        self.quiet(figures);
        self.faults(&all[..few], figures);

        let begun = self.drop_pods(&all[few..]);
        let shown = self.wait("all are shown", || self.missing(&all).is_none());
        figures.add(Row::AllShown, self.candidate, seconds(begun, shown));
        pause(CALM);
        self.idle(2, self.plan.idle, figures);
        let peak = self.stage.agent().unwrap().memory_mib("VmHWM");
        figures.add(Row::ClusterPeak, self.candidate, peak);
    }

    /// Somebody fills the disk of the root directory, and frees it again. Then it becomes larger: a
    /// disk that is close to its threshold is read twice a second, and an idle node has none.
    fn condition(&self, figures: &mut Figures) {
        pause(CALM);
        let file = self.stage.root_dir().join("somebodys");
        let filled = vec![0; usize::try_from(DISK_FILLED_MIB << 20).unwrap()];
        fs::write(&file, filled).unwrap();
        let crossed = now();
        let shown = || is(&self.node(), "DiskPressure", "True");
        let shown = self.wait("the condition is shown", shown);
        figures.add(Row::ConditionShown, self.candidate, seconds(crossed, shown));
        fs::remove_file(&file).unwrap();
        self.wait("the disk is well again", || is(&self.node(), "DiskPressure", "False"));
        self.disk.resize(DISK_LATER);
    }

    /// Nothing happens to some pods for five minutes.
    fn quiet(&self, figures: &mut Figures) {
        // What is reported every five minutes is reported in it, wherever the window begins.
        pause(CALM);
        let asked = Asked::during(&self.link, || self.idle(1, QUIET, figures));
        figures.add(Row::Requests, self.candidate, asked.requests);
        figures.add(Row::KibCarried, self.candidate, asked.kib);
    }

    /// What the agent uses when nothing happens.
    fn idle(&self, place: usize, window: Duration, figures: &mut Figures) {
        let agent = self.stage.agent().unwrap();
        figures.add(Row::ClusterCpu(place), self.candidate, cpu_percent(agent, window));
        figures.add(Row::ClusterRss(place), self.candidate, agent.memory_mib("VmRSS"));
    }

    /// The API server, the way to it, the agent are away for a minute each; a container dies at the
    /// beginning of it.
    fn faults(&self, pods: &[Pod], figures: &mut Figures) {
        // The first time at once, then after ten and twenty seconds: it runs again when a minute is
        // over.
        let away = || {
            self.stage.victim(&pods[0]).kill();
            pause(AWAY);
        };
        let renewed = self.renewed();
        self.plane.apiserver.kill();
        away();
        self.plane.apiserver.start();
        self.wait("the API server answers", || self.plane.admin.find(&node_path()).is_some());
        self.healed(0, 1, &renewed, pods, figures);
        // It gives up soon when there is no API server.
        self.plane.start_all();
        pause(CALM);

        self.link.lose_packets(true);
        let renewed = self.renewed();
        away();
        self.link.heal();
        self.healed(1, 2, &renewed, pods, figures);
        pause(CALM);

        self.stage.kill_agent();
        let renewed = self.renewed();
        away();
        self.stage.start();
        self.healed(2, 3, &renewed, pods, figures);
    }

    /// Until the node is Ready, its lease is renewed, all pods are Ready, and the first one's
    /// restarts are shown.
    fn healed(
        &self,
        fault: usize,
        restarts: u64,
        before: &Value,
        pods: &[Pod],
        figures: &mut Figures,
    ) {
        let begun = now();
        let at = self.wait("node and pods are Ready, and what happened is shown", || {
            let told = |pod: &Value| {
                pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(restarts)
            };
            told(&self.mirror(&pods[0]))
                && is(&self.node(), "Ready", "True")
                && self.renewed() != *before
                && self.missing(pods).is_none()
        });
        figures.add(Row::Healed(fault), self.candidate, seconds(begun, at));
    }

    fn drop_pods(&self, pods: &[Pod]) -> Moment {
        let begun = self.stage.drop_pods(pods);
        self.stage.started(pods);
        begun
    }

    /// The first of the pods that the API server does not show as Ready.
    fn missing<'p>(&self, pods: &'p [Pod]) -> Option<&'p Pod> {
        let list = self.find(PODS)["items"].take();
        let ready: Vec<&str> = list
            .as_array()
            .into_iter()
            .flatten()
            .filter(|pod| is(pod, "Ready", "True"))
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        pods.iter().find(|pod| !ready.contains(&&*full_name(&name_of(pod))))
    }

    fn mirror(&self, pod: &Pod) -> Value {
        self.find(&format!("{PODS}/{}", full_name(&name_of(pod))))
    }

    /// When the node's lease was renewed last.
    fn renewed(&self) -> Value {
        self.find(&format!("{LEASES}/{NODE_NAME}"))["spec"]["renewTime"].take()
    }

    fn node(&self) -> Value {
        self.find(&node_path())
    }

    fn find(&self, path: &str) -> Value {
        self.plane.admin.find(path).unwrap_or_default()
    }

    /// Looks until it is so; gives the moment before the look that saw it.
    fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Moment {
        self.stage.wait(what, PACE, || {
            let looked = now();
            is_so().then_some(looked)
        })
    }
}

/// Where the node is.
pub fn node_path() -> String {
    format!("{NODES}/{NODE_NAME}")
}

/// Whether a condition of an object has this status.
pub fn is(object: &Value, condition: &str, status: &str) -> bool {
    objects::condition(object, condition).is_some_and(|(told, _)| told == status)
}
