//! The workers of one agent in the test's own process: the real set, store and relist loop on the
//! fake runtime, behind the fault proxy. The test plays the sources and the pressure loop.
//!
//! Every mutating call is journalled with the state files as they are when the runtime receives it.

use crate::support::{
    agent::NODE_NAME,
    cri::{Cri, node_facts},
    fake::Fake,
    manifest::Pod,
    poll_until,
    proxy::{Call, Proxy},
    slot::Slot,
    tokio_runtime,
    world::{SOON, full_name},
};
use nodelet::{
    admission,
    cgroup::{CgroupSettings, Cgroups, Hierarchy, SystemdSockets},
    clock,
    cri::{POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL, RuntimeClient, v1},
    desired::{Knowledge, SourceSnapshot},
    event::{self, EventLog},
    handler::Handlers,
    hostfiles::{HostFilePaths, HostFiles},
    image::{CredentialPaths, ImageSettings, Images, PullRecords, VerificationPolicy},
    manifest::{self, Context},
    model::{
        CgroupDriver, DataObject, Datum, DesiredPod, Evicted, Hold, HoldStop, Known, MachineState,
        NodeObjects, NodeProbes, NodeScheduling, OWNER_LABEL, ObjectKey, ObjectKind, Origin,
        PodKey, PodView, PodViews, PressureOrders, SourceKind, SourceView, ToldDriver,
    },
    plan::PlanSettings,
    pleg::{Pleg, PlegSettings},
    podspec::{Amounts, CgroupOptions, IDS_PER_POD, IdSpace},
    store::Store,
    volume::Volumes,
    worker::{
        Host, HostSettings, Leftovers, SetInputs, SetView, StartTurns, UserNamespaces, VolumeTurns,
        WorkerSet,
    },
};
use serde_json::Value;
use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The owner id of these workers.
pub(super) const OWNER: &str = "0123456789abcdef0123456789abcdef";

/// A runtime class that manifests may name, and that the configuration of the workers lacks, as it
/// lacks some classes of an API server.
pub(super) const UNKNOWN_CLASS: &str = "unknown";

/// A mutating call, and the state files of its pod at that moment.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The call.
    pub(super) call: Call,
    /// The pod's records, if it has any.
    pub(super) records: Option<Value>,
    /// Its back-offs and the like.
    pub(super) memory: Option<Value>,
}

/// The workers, and what the test does to them. Fields are dropped in this order.
pub(super) struct Bench {
    tasks: Option<JoinSet<()>>,
    stop: CancellationToken,
    /// Between workers and runtime.
    pub(super) proxy: Proxy,
    /// Looks at the runtime past the proxy.
    pub(super) cri: Cri,
    _fake: Fake,
    journal: Arc<Mutex<Vec<Entry>>>,
    log: watch::Receiver<Arc<EventLog>>,
    source: watch::Sender<Arc<SourceSnapshot>>,
    _machine: watch::Sender<MachineState>,
    node_ips: watch::Sender<Arc<[IpAddr]>>,
    objects: watch::Sender<Arc<NodeObjects>>,
    _probes: watch::Sender<Arc<NodeProbes>>,
    pressure: watch::Sender<Arc<PressureOrders>>,
    scheduling: watch::Sender<Option<Arc<NodeScheduling>>>,
    views: watch::Receiver<Arc<PodViews>>,
    known: watch::Receiver<Arc<Known>>,
    set_view: watch::Receiver<Arc<SetView>>,
    slot: Slot,
}

fn host_files(slot: &Slot, root_dir: PathBuf) -> HostFiles {
    HostFiles::new(HostFilePaths {
        root_dir,
        pod_logs_dir: slot.dir().join("logs"),
        links_dir: slot.dir().join("links"),
        node_hosts: "/etc/hosts".into(),
        network_results_dir: slot.dir().join("cni"),
    })
}

fn start_fake(slot: &Slot) -> Fake {
    let fake = Fake::start(&slot.dir().join("fake.sock"));
    fake.add_user_namespaces();
    fake
}

impl Bench {
    /// Workers without anything to do, that make no cgroups.
    pub(super) fn start() -> Self {
        Self::start_in(Slot::take(), None)
    }

    /// Workers with a cgroup v2 tree of plain files, see [`Self::cgroup`]. The kernel is not asked.
    pub(super) fn start_with_cgroups() -> Self {
        let slot = Slot::take();
        let tree = slot.dir().join("cgroup");
        make_cgroup(&tree);
        for cgroup in ["kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            make_cgroup(&tree.join(cgroup));
        }
        Self::start_in(slot, Some(&tree))
    }

    fn start_in(slot: Slot, cgroups: Option<&Path>) -> Self {
        let _in_runtime = tokio_runtime().enter();
        let fake = start_fake(&slot);
        let proxy = Proxy::start(&slot.dir().join("proxy.sock"), fake.socket());
        let cri = Cri::new(fake.socket());
        let journal = Arc::default();
        proxy.witness_mutating_calls(witness(slot.dir(), Arc::clone(&journal)));

        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let (root, run) = (slot.dir().join("root"), slot.dir().join("run"));
        let locked = Store::lock(root.clone(), run.clone()).unwrap();
        let (store, writer, loaded) = Store::open(locked, Some(OWNER), "this boot").unwrap();
        tasks.spawn(writer.run());
        let (events, aggregation, log) = event::channel();
        tasks.spawn(aggregation.run(stop.clone()));
        let endpoint = format!("unix://{}", proxy.socket().display());
        let runtime = RuntimeClient::new(&endpoint, None, Duration::from_secs(120)).unwrap();
        let (pleg, pleg_handle, updates) =
            Pleg::new(runtime.clone(), PlegSettings::new(clock::now));
        tasks.spawn(pleg.run(stop.clone()));
        let cgroup_files = cgroup_tree(cgroups);
        let volumes = Volumes::open(&root, Some(1 << 30)).unwrap();
        let files = host_files(&slot, root);
        let (node_ips, objects) = (watch::Sender::default(), watch::Sender::new(no_objects()));
        let host = Host {
            images: Images::new(runtime.clone(), image_settings(slot.dir())),
            runtime,
            store,
            events,
            leftovers: Leftovers::new(cgroup_files.clone(), volumes.clone(), files.clone()),
            cgroups: cgroup_files,
            volumes,
            files,
            handlers: Handlers::new().unwrap(),
            starts: StartTurns::new(4),
            node_ips: node_ips.subscribe(),
            volume_turns: VolumeTurns::default(),
            user_namespaces: UserNamespaces::new(IdSpace::of_machine("", "", IDS_PER_POD, 110)),
            settings: host_settings(cgroups.is_some()),
            pleg: pleg_handle,
        };
        let source = watch::Sender::new(snapshot(Vec::new()));
        let (machine, probes) = (watch::Sender::new(MachineState::Up), watch::Sender::default());
        let (pressure, scheduling) = (no_pressure(), watch::Sender::default());
        let inputs = SetInputs {
            sources: vec![source.subscribe()],
            updates,
            health: host.pleg.health(),
            machine: machine.subscribe(),
            node: node(),
            scheduling: Some(scheduling.subscribe()),
            probes: probes.subscribe(),
            objects: vec![objects.subscribe()],
            pressure: pressure.subscribe(),
            asking: mpsc::channel(1).1,
            records: loaded.pods,
            kept: loaded.memory,
            rollouts: loaded.rollouts,
        };
        let set = WorkerSet::new(Arc::new(host), inputs, stop.clone());
        let (views, known, set_view) = (set.views(), set.known(), set.set_view());
        tasks.spawn(async { set.run().await.unwrap() });
        Self {
            tasks: Some(tasks),
            stop,
            proxy,
            cri,
            _fake: fake,
            journal,
            log,
            source,
            _machine: machine,
            node_ips,
            objects,
            _probes: probes,
            pressure,
            scheduling,
            views,
            known,
            set_view,
            slot,
        }
    }

    /// The sources want these pods and no others.
    pub(super) fn wish(&self, pods: &[&Pod]) {
        self.source.send_replace(snapshot(pods.iter().map(|pod| desired(pod)).collect()));
    }

    /// The Node object has this label and no others.
    pub(super) fn label(&self, key: &str, value: &str) {
        let labels = [(key.to_owned(), value.to_owned())].into();
        let scheduling = NodeScheduling { labels, ..NodeScheduling::default() };
        self.scheduling.send_replace(Some(Arc::new(scheduling)));
    }

    /// There is this ConfigMap with the one key `key`, and no other object.
    pub(super) fn configure(&self, name: &str, value: &str) {
        let key = ObjectKey {
            kind: ObjectKind::ConfigMap,
            namespace: "default".into(),
            name: name.into(),
        };
        let object = DataObject {
            key: key.clone(),
            data: [("key".into(), Datum::Text(value.into()))].into(),
            uid: "".into(),
            immutable: false,
            secret_type: "".into(),
            origin: origin(),
        };
        let mut objects = NodeObjects::clone(&no_objects());
        objects.found.insert(key, Arc::new(object));
        self.objects.send_replace(Arc::new(objects));
    }

    /// The node has this address, which every worker reports.
    pub(super) fn address(&self, address: IpAddr) {
        self.node_ips.send_replace([address].into());
    }

    /// The pressure loop has evicted these pods. The workers hear of it in the order of the pods'
    /// names.
    pub(super) fn evict(&self, pods: &[&Pod], stop: HoldStop) {
        let hold = Arc::new(Hold {
            reason: "Evicted".to_owned(),
            message: "The node was low on resource: memory.".to_owned(),
            stop,
            disruption: None,
        });
        let evicted = pods.iter().map(|pod| desired(pod)).map(|pod| {
            let evicted = Evicted { uid: pod.uid.clone(), hold: Arc::clone(&hold) };
            (pod.key, evicted)
        });
        self.pressure.send_modify(|orders| Arc::make_mut(orders).evicted.extend(evicted));
    }

    /// The calls of `method` for a pod so far.
    pub(super) fn calls(&self, method: &str, pod: &str) -> Vec<Entry> {
        let mut entries = self.journal.lock().unwrap().clone();
        entries.retain(|entry| entry.call.method == method && entry.call.is_for(pod));
        entries
    }

    /// How often an event with this reason and a message that contains `part` was recorded.
    pub(super) fn events(&self, reason: &str, part: &str) -> u32 {
        let log = Arc::clone(&self.log.borrow());
        let entries = log.entries.iter().map(|entry| (&entry.event, entry.count));
        let said =
            entries.filter(|(event, _)| event.reason == reason && event.message.contains(part));
        said.map(|(_, count)| count).sum()
    }

    /// Names of the methods called for a pod, in order.
    pub(super) fn order(&self, pod: &str) -> Vec<String> {
        let calls = self.proxy.mutating_calls();
        calls.into_iter().filter(|call| call.is_for(pod)).map(|call| call.method).collect()
    }

    /// Waits for the `count`th call of `method` for a pod; gives all of them.
    #[track_caller]
    pub(super) fn wait_called(&self, method: &str, pod: &str, count: usize) -> Vec<Entry> {
        let what = format!("{count} calls of {method} for {pod}");
        self.wait(&what, || self.calls(method, pod), |calls| calls.len() >= count)
    }

    /// Waits until the published view of a pod is as wanted; `None` while there is no view.
    #[track_caller]
    pub(super) fn wait_view(
        &self,
        what: &str,
        pod: &str,
        accept: impl Fn(Option<&PodView>) -> bool,
    ) {
        let key = PodKey::new("default", &full_name(pod));
        let look = || self.views.borrow().get(&key).cloned();
        self.wait(what, look, |view| accept(view.as_deref()));
    }

    /// Waits until every container of a pod runs.
    #[track_caller]
    pub(super) fn wait_running(&self, pod: &str) {
        self.wait_view("the pod runs", pod, |view| {
            let statuses = view.and_then(|view| view.status.container_statuses.as_ref());
            statuses.is_some_and(|all| all.iter().all(|status| status.ready))
        });
    }

    /// Waits until nothing is left of a pod.
    #[track_caller]
    pub(super) fn wait_gone(&self, pod: &str) {
        self.wait_view("the pod is gone", pod, |view| view.is_none());
    }

    /// What must not be taken for a leftover.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.borrow())
    }

    /// Waits until something is true; fails with the journal.
    #[track_caller]
    pub(super) fn wait<T: std::fmt::Debug>(
        &self,
        what: &str,
        look: impl FnMut() -> T,
        accept: impl FnMut(&T) -> bool,
    ) -> T {
        match poll_until(SOON, look, accept) {
            Ok(value) => value,
            Err(last) => {
                let calls = self.proxy.mutating_calls();
                panic!("not within {SOON:?}: {what}\n--- last: {last:#?}\n--- calls: {calls:#?}")
            }
        }
    }

    /// Makes a sandbox of another agent for the same incarnation of a pod, and waits until it is
    /// seen; gives its id.
    #[track_caller]
    pub(super) fn make_foreign_sandbox(&self, pod: &Pod, attempt: u32) -> String {
        let DesiredPod { key, uid, .. } = desired(pod);
        let metadata = v1::PodSandboxMetadata {
            name: key.name.to_string(),
            namespace: key.namespace.to_string(),
            uid: uid.to_string(),
            attempt,
        };
        let labels = [
            (POD_NAME_LABEL, metadata.name.as_str()),
            (POD_NAMESPACE_LABEL, &metadata.namespace),
            (POD_UID_LABEL, &metadata.uid),
            (OWNER_LABEL, "another"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let config =
            v1::PodSandboxConfig { metadata: Some(metadata), labels, ..Default::default() };
        let id = self.cri.run_sandbox(config).unwrap();
        let seen = || self.set_view.borrow().foreign.clone();
        self.wait("the foreign sandbox is seen", seen, |all| all.iter().any(|pod| pod.key == key));
        id
    }

    /// The directory of a pod below the root directory.
    pub(super) fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.slot.dir().join("root/pods").join(desired(pod).uid.as_str())
    }

    /// Makes the cgroup of a pod without requests in the tree of [`Self::start_with_cgroups`].
    pub(super) fn cgroup(&self, pod: &Pod) -> PathBuf {
        let cgroup = self.cgroup_path("besteffort", pod);
        make_cgroup(&cgroup);
        cgroup
    }

    /// Where the cgroup of a pod is in a tier of that tree.
    pub(super) fn cgroup_path(&self, tier: &str, pod: &Pod) -> PathBuf {
        let name = format!("pod{}", desired(pod).uid);
        self.slot.dir().join("cgroup/kubepods").join(tier).join(name)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.cancel();
        let tasks = self.tasks.take();
        // A test that fails may leave a call hanging that its worker awaits.
        self.proxy.lift_all();
        tokio_runtime().block_on(async {
            if let Some(mut tasks) = tasks {
                tasks.abort_all();
                while tasks.join_next().await.is_some() {}
            }
        });
    }
}

/// Journals each call with the state files of its pod.
fn witness(dir: &Path, journal: Arc<Mutex<Vec<Entry>>>) -> impl Fn(&Call) + Send + Sync + 'static {
    let (records, memory) = (dir.join("root/nodelet/pods"), dir.join("run/pods"));
    move |call| {
        let name = call.pod.as_ref().map(|pod| pod.name.as_str()).unwrap_or_default();
        let read = |dir: &Path| {
            let text = fs::read(dir.join(format!("default_{name}.json"))).ok()?;
            Some(serde_json::from_slice::<Value>(&text).unwrap()["content"].take())
        };
        let entry = Entry { call: call.clone(), records: read(&records), memory: read(&memory) };
        journal.lock().unwrap().push(entry);
    }
}

/// The pod of a manifest.
pub(super) fn desired(pod: &Pod) -> DesiredPod {
    let runtime_classes = [(UNKNOWN_CLASS.to_owned(), String::new())].into();
    let settings = manifest::Settings { runtime_classes, ..manifest::Settings::default() };
    let context = Context {
        node_name: NODE_NAME,
        source: SourceKind::File,
        location: "/manifests/pod.yaml",
        seen: jiff::Timestamp::UNIX_EPOCH,
        settings: &settings,
    };
    let mut decoded = manifest::decode(pod.text().as_bytes(), &context).unwrap();
    decoded.documents.remove(0).result.unwrap()
}

fn snapshot(pods: Vec<DesiredPod>) -> Arc<SourceSnapshot> {
    let view = Arc::new(SourceView::empty(SourceKind::File, "/manifests"));
    Arc::new(SourceSnapshot {
        kind: SourceKind::File,
        knowledge: Knowledge::Complete,
        pods: pods.into_iter().map(Arc::new).collect(),
        unconfirmed: std::collections::BTreeSet::new(),
        ends: std::collections::BTreeMap::new(),
        view,
    })
}

/// The files that the kernel has in every cgroup.
fn make_cgroup(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let controllers = "cpuset cpu io memory hugetlb pids";
    for (file, content) in [
        ("cgroup.controllers", controllers),
        ("cgroup.subtree_control", controllers),
        ("cgroup.procs", ""),
        ("cgroup.kill", ""),
        ("cpu.weight", ""),
        ("cpu.max", ""),
        ("memory.max", ""),
        ("pids.max", ""),
    ] {
        fs::write(directory.join(file), content).unwrap();
    }
}

fn cgroup_tree(root: Option<&Path>) -> Cgroups {
    let mount_point = root.unwrap_or(Path::new("/nonexistent")).to_owned();
    let hierarchy = Hierarchy { mount_point, controllers: Vec::new(), unified: true };
    let settings = CgroupSettings {
        root: "/".to_owned(),
        per_qos: root.is_some(),
        driver: CgroupDriver::Cgroupfs,
        systemd: SystemdSockets { private: "/nonexistent".into(), bus: "/nonexistent".into() },
    };
    let cgroups = Cgroups::on_hierarchies(vec![hierarchy], &settings).unwrap();
    cgroups.runtime_tells(ToldDriver::NotOffered);
    cgroups
}

fn origin() -> Origin {
    let location = "/manifests".into();
    Origin { source: SourceKind::File, location, document: 0, line: 1 }
}

fn no_objects() -> Arc<NodeObjects> {
    Arc::new(NodeObjects { known: true, ..NodeObjects::default() })
}

fn no_pressure() -> watch::Sender<Arc<PressureOrders>> {
    watch::Sender::new(Arc::new(PressureOrders { known: true, ..PressureOrders::default() }))
}

fn image_settings(dir: &Path) -> ImageSettings {
    let records = dir.join("image_manager");
    ImageSettings {
        parallel: None,
        qps: 0,
        burst: 0,
        credentials: CredentialPaths::default(),
        providers: Vec::new(),
        records: PullRecords::load(records, VerificationPolicy::default()),
    }
}

fn host_settings(cgroup_v2: bool) -> HostSettings {
    HostSettings {
        node_name: NODE_NAME.into(),
        owner: OWNER.into(),
        plan: PlanSettings {
            owner: OWNER.into(),
            crash_loop_cap: Duration::from_secs(300),
            prepare_updates: true,
            runtime_classes: std::collections::BTreeMap::new(),
        },
        facts: node_facts(cgroup_v2),
        cgroup: CgroupOptions { cpu_cfs_quota: true, cpu_period_micros: 100_000, pids_limit: None },
        allocatable: Amounts::default(),
        resolv_conf: None,
        in_cluster: false,
        cluster_dns: Vec::new(),
        cluster_domain: String::new(),
        request_timeout: Duration::from_secs(120),
    }
}

fn node() -> admission::NodeFacts {
    admission::NodeFacts {
        name: NODE_NAME.into(),
        allocatable: admission::Allocatable {
            cpu_milli: 4000,
            memory_bytes: 8 << 30,
            pods: 110,
            ..admission::Allocatable::default()
        },
        ..admission::NodeFacts::default()
    }
}
