//! Makes the parts from the configuration and connects them.

use super::{
    Ended,
    cluster::{self, ApiPods, ClusterInputs, Machine, NodeForAdmission},
    kubelet_api::kubelet_api,
    node_facts::{self, node_facts},
    places::{find_claims, find_places},
    remembered::save_answers,
    settings::{
        cgroup_settings, enforces_pods, gc_settings, host_settings, id_space, image_settings,
        reserved, serve_settings, start_turns,
    },
    sources::{look_again, obey, spawn_sources},
};
use crate::{
    admission,
    blocking::STATE,
    cgroup::{CgroupVersion, Cgroups, node_limits},
    clock,
    config::Config,
    cri::RuntimeClient,
    desired::SourceSnapshot,
    event::{self, Recorder},
    eviction::{self, DiskTask, EvictionChannels, EvictionParts, EvictionTask},
    handler::Handlers,
    hostfiles::{HostFilePaths, HostFiles},
    housekeeping::{Housekeeping, HousekeepingParts, ImageGcParts, ImageGcTask, Keeper, Sweeper},
    image::Images,
    log_rotator::{LogRotatorParts, LogRotatorTask},
    machine::{self, AddressTask, NodeIps},
    model::{
        Ending, Event, EventKind, EventTarget, MachineState, NodeCapacity, NodeConditions,
        NodeView, PodViews, PressureOrders, PressureView, error_chain,
    },
    node::{HostState, host_warnings},
    node_view::{NodeViewTask, save_conditions, saved_conditions},
    pleg::{Pleg, PlegHandle, PlegSettings},
    pressure::core::{Evictions, Relief},
    prober::{ProberParts, ProberTask},
    serve::{self, Graphs, KubeletApi, ServeSettings, Server, StatsSource, Views},
    shutdown::{Places, ShutdownTask, Stage},
    signals::{DiskReadings, FindPlaces},
    stats::{Collector, GraphsTask, StatsParts},
    store::{Loaded, Store},
    systemd::{Pulse, SystemdTask},
    volume::Volumes,
    worker::{
        Host, Known, Leftovers, SetInputs, StartTurns, UserNamespaces, VolumeTurns, WorkerSet,
    },
};
use anyhow::Context as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The time between two readings of file systems until the eviction loop sets another one.
const DISK_PERIOD: Duration = Duration::from_secs(10);
/// The number of commands from the local socket that may wait.
const COMMANDS: usize = 8;

type Snapshots = watch::Receiver<Arc<SourceSnapshot>>;

pub(super) type Tasks = JoinSet<Ended>;

/// What the rest of the agent needs from the parts.
pub(super) struct Built {
    pub node_name: String,
    pub shutdown_stage: watch::Receiver<Stage>,
}

/// Makes all parts and spawns their tasks. Whenever `reload` changes, manifests and credentials are
/// read again.
#[allow(clippy::too_many_lines, reason = "one list of the parts and of what connects them")]
pub(super) async fn spawn_all(
    config: &Config,
    reload: watch::Receiver<u64>,
    tasks: &mut Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<Built> {
    let (root, run) = (config.paths.root_dir.clone(), config.paths.run_dir.clone());
    let locked = STATE.run(move || Store::lock(root, run)).await??;
    let runtime = RuntimeClient::new(
        &config.cri.endpoint.to_string(),
        Some(&config.cri.image_endpoint.to_string()),
        config.cri.request_timeout,
    )?;
    let (pleg, pleg_handle, updates) = Pleg::new(runtime.clone(), PlegSettings::new(clock::now));
    spawn(tasks, "relist", pleg.run(shutdown.clone()));
    // Meanwhile the runtime answers the first listing, which must not be older than the locks.
    let owner = config.paths.owner.clone();
    let open = move || Store::open(locked, owner.as_deref(), &machine::boot_id(Path::new("/")));
    let (store, writer, mut loaded) = STATE.run(open).await??;
    let [synced, cached] = writer.heartbeats();
    spawn(tasks, "store", writer.run());
    let host_name = machine::host_name().context("the host's name can't be read")?;
    let node_name = store.node_name(&host_name, config.node.name_override.as_deref())?;
    let sources = spawn_sources(config, &node_name, &mut loaded, &store, tasks, shutdown);
    // Lets the sources begin to read manifests on their threads while the other parts are made.
    tokio::task::yield_now().await;
    let capacity = machine::capacity(Path::new("/"))?;
    let (recorder, events, event_log) = event::channel();
    spawn(tasks, "events", events.run(shutdown.clone()));
    let health = pleg_handle.health();
    let relists = pleg_handle.heartbeat();
    let addresses = AddressTask::new(config.node.ips.clone());
    let node_ips = addresses.addresses();
    spawn(tasks, "addresses", addresses.run(shutdown.clone()));
    let handlers = Handlers::new().context("TLS for probes and hooks")?;
    let links = Links {
        runtime,
        store: store.clone(),
        pleg: pleg_handle,
        events: recorder.clone(),
        node_ips: node_ips.clone(),
        handlers: handlers.clone(),
    };
    let facts = node_facts(config, &node_name, &capacity)?;
    let (labels, allocatable) = (facts.labels.clone(), facts.allocatable.clone());
    let host = Arc::new(host(config, &facts, &capacity, links)?);
    mark_pod_dirs(&host, &loaded);
    report_host(&host, facts.kernel);

    let mut snapshots: Vec<Snapshots> =
        sources.pods.iter().map(|source| source.snapshots.clone()).collect();
    let runs_api_pods = config.cluster.kubeconfig.is_some() && config.source.api_pods;
    let api_pods = runs_api_pods.then(|| ApiPods::new(&mut loaded));
    snapshots.extend(api_pods.as_ref().map(|of_api| of_api.pods.subscribe()));
    let mut objects = sources.objects.clone();
    if let Some(of_api) = &api_pods {
        objects.push(of_api.objects.subscribe());
        let saving = save_answers(of_api.objects.subscribe(), store.clone(), shutdown.clone());
        spawn(tasks, "saved answers of the API server", saving);
    }
    let claims = find_claims(objects.clone(), host.volumes.clone());
    let shown: Vec<_> = sources.all().map(|source| source.snapshots.clone()).collect();
    let heartbeats_of_sources: Vec<_> =
        sources.all().map(|source| ("manifests", source.heartbeat.clone())).collect();
    let machine = watch::Sender::default();
    let evictions = eviction::restored(loaded.evictions.take());
    let thresholds = &config.eviction;
    let first_orders = Relief::first_orders(&evictions, thresholds, clock::now());
    let orders = watch::Sender::new(Arc::new(first_orders));
    let (pressure_view, pressure) = watch::channel(Arc::default());
    let (probe_results, probes) = watch::channel(Arc::default());
    let (asking, requests) = mpsc::channel(COMMANDS);
    let (scheduling, node_object) = watch::channel(None);
    let inputs = SetInputs {
        sources: snapshots.clone(),
        updates,
        health: health.clone(),
        machine: machine.subscribe(),
        node: facts,
        scheduling: config.cluster.kubeconfig.is_some().then_some(node_object),
        probes,
        objects,
        pressure: orders.subscribe(),
        asking: requests,
        records: loaded.pods,
        kept: loaded.memory,
        rollouts: loaded.rollouts,
    };
    let runtime = host.runtime.clone();
    let set = WorkerSet::new(Arc::clone(&host), inputs, shutdown.clone());
    let (pods, set_view, heartbeat) = (set.views(), set.set_view(), set.heartbeat());
    let (known, ending, dead) = (set.known(), set.ending(), set.dead());
    let node_wanted = set.node_wanted();
    tasks.spawn(named("workers", set.run()));
    let prober = ProberTask::new(ProberParts {
        runtime: runtime.clone(),
        handlers,
        events: recorder.clone(),
        pods: pods.clone(),
        results: probe_results,
    });
    let (probes, probed) = (prober.views(), prober.heartbeat());
    spawn(tasks, "probes", prober.run(shutdown.clone()));

    let rotator = LogRotatorTask::new(LogRotatorParts {
        runtime: runtime.clone(),
        files: host.files.clone(),
        settings: config.logs,
        pods: pods.clone(),
    });
    spawn(tasks, "container logs", rotator.run(shutdown.clone()));

    let orders_of_view = orders.subscribe();
    let places = find_places(host.cgroups.clone(), host.volumes.clone(), host.files.clone());
    let watched = Watched {
        orders,
        view: pressure_view,
        pods: pods.clone(),
        known: known.clone(),
        dead,
        evictions,
        sources: snapshots.clone(),
        images: loaded.images.take(),
        places: Arc::clone(&places),
    };
    let disks = spawn_pressure(config, &host, watched, tasks, shutdown)?;
    let collector = Collector::new(StatsParts {
        cgroups: host.cgroups.clone(),
        runtime: runtime.clone(),
        places,
        claims,
        pods: pods.clone(),
        disks,
        survey_period: config.pods.volume_stats_period,
    });
    let conducted = Conducted { machine, ending: ending.clone() };
    let (shutdown_stage, trouble_of_shutdown) =
        spawn_shutdown(config, conducted, recorder.clone(), tasks, shutdown);
    let (trouble_sender, trouble) = watch::channel(Vec::new());
    let cgroup_driver = host.cgroups.driver_state();
    let known_pods = known.clone();
    let housekeeping = housekeeping(config, &host, &capacity, known, trouble_sender);
    spawn(tasks, "housekeeping", housekeeping.run(shutdown.clone()));
    let (published, node) = watch::channel(Arc::default());
    let (published_conditions, conditions) = watch::channel(Arc::default());
    let (cluster_view, cluster) = watch::channel(None);
    let save = save_conditions(conditions.clone(), store.clone(), shutdown.clone());
    spawn(tasks, "conditions", save);
    let mut view = NodeViewTask {
        base: base_view(config, &node_name),
        health: health.clone(),
        sources: shown,
        set: set_view,
        trouble,
        trouble_of_shutdown,
        ending,
        cgroup_driver,
        store_warnings: store.warnings(),
        pressure,
        orders: orders_of_view,
        conditions: NodeConditions::default(),
        saved_conditions: saved_conditions(loaded.conditions.take()),
        published_conditions,
        cluster: config.cluster.kubeconfig.is_some().then_some(cluster),
        published,
    };
    view.publish();
    tasks.spawn(named("node view", view.run(shutdown.clone())));

    let mut link = None;
    let (of_sessions, of_server) = (runtime.clone(), node_ips.clone());
    if let Some(kubeconfig) = &config.cluster.kubeconfig {
        recorder.record(starting());
        let inputs = ClusterInputs {
            machine: Machine {
                name: node_name.clone(),
                labels,
                capacity: node_facts::capacity(config, &capacity),
                allocatable,
                runtime,
                health,
                view: node.clone(),
                conditions,
                node_ips,
            },
            pods: pods.clone(),
            known: known_pods,
            log: event_log.clone(),
            events: recorder,
            admission: NodeForAdmission { scheduling, wanted: node_wanted },
            published: cluster_view,
            reload: reload.clone(),
            api_pods,
        };
        let (parts, way) = cluster::parts(&Arc::new(config.clone()), kubeconfig, inputs, shutdown);
        link = Some(way);
        parts.into_iter().for_each(|(name, part)| spawn(tasks, name, part));
    }
    spawn(tasks, "reload", look_again(reload, sources.all().cloned().collect(), shutdown.clone()));
    let (commands, command_queue) = mpsc::channel(COMMANDS);
    tasks.spawn(named("commands", obey(command_queue, sources.pods, asking, shutdown.clone())));
    let mut loops = vec![
        ("workers", heartbeat),
        ("relist", relists),
        ("probes", probed),
        ("state files", synced),
        ("state files of this boot", cached),
    ];
    loops.extend(heartbeats_of_sources);
    let heartbeats = loops.iter().map(|(_, beats)| beats.clone()).collect();
    let graphs = graphs(collector.clone(), tasks, shutdown);
    let stats = stats_source(collector);
    let views = Views { pods, probes, node, events: event_log, heartbeats, stats, graphs };
    let loops = loops.into_iter().map(|(name, beats)| Pulse::new(name, beats)).collect();
    let paths = &config.paths;
    let keeper =
        Keeper::new(store, node_name.clone(), paths.root_dir.clone(), paths.run_dir.clone());
    let kubelet = kubelet_api(config, &node_name, of_server, link);
    let served =
        Served { views, commands, loops, looks: keeper.looks(), runtime: of_sessions, kubelet };
    tasks.spawn(named("own directories", keeper.run(shutdown.clone())));
    let settings = serve_settings(config, &capacity, host.cgroups.version());
    serve(config, settings, served, (tasks, shutdown))?;
    Ok(Built { node_name, shutdown_stage })
}

/// Emits the warnings about the host.
fn report_host(host: &Host, kernel: Option<(u32, u32)>) {
    let state = HostState {
        cgroup_v1: host.cgroups.version() == CgroupVersion::V1,
        swap_on: machine::swap_is_on(Path::new("/")),
        kernel,
    };
    let noswap_works = || match host.volumes.noswap_works() {
        Ok(works) => works,
        Err(error) => {
            let err = error_chain(&error);
            tracing::warn!(err, "cannot find out whether tmpfs supports the option noswap");
            false
        }
    };
    for event in host_warnings(&state, noswap_works) {
        host.events.record(event);
    }
}

/// The first event of a node agent in a cluster.
fn starting() -> Event {
    let message = "Starting kubelet.".to_owned();
    Event { target: EventTarget::Node, kind: EventKind::Normal, reason: "Starting", message }
}

/// What the socket, the health port and systemd report about the agent.
struct Served {
    views: Views,
    commands: mpsc::Sender<serve::Command>,
    loops: Vec<Pulse>,
    /// Changes when the socket may have been deleted.
    looks: watch::Receiver<u64>,
    runtime: RuntimeClient,
    kubelet: Option<KubeletApi>,
}

fn stats_source(collector: Collector) -> StatsSource {
    let (of_logs, of_claims) = (collector.clone(), collector.clone());
    StatsSource {
        collect: Arc::new(move |depth| {
            let collector = collector.clone();
            Box::pin(async move { collector.collect(depth).await })
        }),
        measure_logs: Arc::new(move || {
            let collector = of_logs.clone();
            Box::pin(async move { collector.log_sizes().await })
        }),
        measure_claims: Arc::new(move || {
            let collector = of_claims.clone();
            Box::pin(async move { collector.claims().await })
        }),
    }
}

/// The graphs of the status page, for which samples are taken while somebody looks at it.
fn graphs(collector: Collector, tasks: &mut Tasks, shutdown: &CancellationToken) -> Graphs {
    let (looks, looked) = watch::channel(Duration::ZERO);
    let (history, published) = watch::channel(Arc::default());
    let task = GraphsTask { collector, looks: looked, history };
    spawn(tasks, "graphs", task.run(shutdown.clone()));
    Graphs { looks, history: published }
}

/// Starts the parts that report how the agent is: the local socket, the health port, systemd. This
/// is the last step that can fail.
fn serve(
    config: &Config,
    settings: ServeSettings,
    Served { views, commands, loops, looks, runtime, kubelet }: Served,
    (tasks, shutdown): (&mut Tasks, &CancellationToken),
) -> anyhow::Result<()> {
    let systemd = config.process.notify_socket.clone().map(|socket| SystemdTask {
        socket,
        watchdog: config.process.watchdog,
        node: views.node.clone(),
        pods: views.pods.clone(),
        loops,
    });
    let server = Server::bind(settings, views, commands, runtime, kubelet)?;
    spawn(tasks, "server", server.run(looks, shutdown.clone()));
    // No later step can fail, so the agent can report that it is ready.
    if let Some(systemd) = systemd {
        spawn(tasks, "systemd", systemd.run(shutdown.clone()));
    }
    Ok(())
}

/// What the pressure loop reads and writes.
struct Watched {
    orders: watch::Sender<Arc<PressureOrders>>,
    view: watch::Sender<Arc<PressureView>>,
    pods: watch::Receiver<Arc<PodViews>>,
    known: watch::Receiver<Arc<Known>>,
    dead: watch::Receiver<usize>,
    evictions: Evictions,
    sources: Vec<Snapshots>,
    /// What is known of images.
    images: Option<serde_json::Value>,
    places: FindPlaces,
}

/// Returns the readings of the disks.
fn spawn_pressure(
    config: &Config,
    host: &Arc<Host>,
    watched: Watched,
    tasks: &mut Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<DiskReadings> {
    let settings = config.eviction.clone();
    if let Err(too_large) = settings.check_against(&eviction::capacities(&settings)) {
        let all: Vec<String> = too_large.iter().map(ToString::to_string).collect();
        anyhow::bail!("{}", all.join("; "));
    }
    let (disk_period, period) = watch::channel(DISK_PERIOD);
    let (disk_task, disks) = DiskTask::new(host.runtime.clone(), &config.paths.root_dir, period);
    let (images, requests) = mpsc::channel(1);
    let gc = ImageGcParts {
        runtime: host.runtime.clone(),
        store: host.store.clone(),
        events: host.events.clone(),
        pulled: host.images.pulled(),
        records: host.images.records().clone(),
        settings: gc_settings(config),
        sources: watched.sources,
        pods: watched.pods.clone(),
        disks: disks.clone(),
        requests,
    };
    spawn(tasks, "images", ImageGcTask::new(gc, watched.images).run(shutdown.clone()));
    spawn(tasks, "disks", disk_task.run(shutdown.clone()));
    let parts = EvictionParts {
        node_name: host.settings.node_name.clone(),
        store: host.store.clone(),
        events: host.events.clone(),
        runtime: host.runtime.clone(),
        cgroups: host.cgroups.clone(),
        places: Arc::clone(&watched.places),
    };
    let channels = EvictionChannels {
        disks: disks.clone(),
        disk_period,
        pods: watched.pods,
        known: watched.known,
        dead: watched.dead,
        orders: watched.orders,
        view: watched.view,
        images,
    };
    let (root, logs) = (config.paths.root_dir.clone(), config.paths.pod_logs_dir.clone());
    let task = EvictionTask::new(settings, watched.evictions, root, logs, parts, channels);
    tasks.spawn(named("eviction", task.run(shutdown.clone())));
    Ok(disks)
}

fn housekeeping(
    config: &Config,
    host: &Host,
    capacity: &NodeCapacity,
    known: watch::Receiver<Arc<Known>>,
    trouble: watch::Sender<Vec<String>>,
) -> Housekeeping {
    Housekeeping::new(HousekeepingParts {
        cgroups: host.cgroups.clone(),
        limits: node_limits(capacity, &reserved(config), enforces_pods(config)),
        events: host.events.clone(),
        sweeper: Sweeper {
            volumes: host.volumes.clone(),
            files: host.files.clone(),
            leftovers: host.leftovers.clone(),
            owner: host.settings.owner.clone(),
            known: known.clone(),
        },
        health: host.pleg.health(),
        known,
        trouble,
    })
}

/// The channels between the shutdown task and the workers.
struct Conducted {
    machine: watch::Sender<MachineState>,
    ending: watch::Receiver<Ending>,
}

/// Returns the stage of a shutdown of the machine, and the problems with waiting for pods.
fn spawn_shutdown(
    config: &Config,
    conducted: Conducted,
    events: Recorder,
    tasks: &mut Tasks,
    stop: &CancellationToken,
) -> (watch::Receiver<Stage>, watch::Receiver<Vec<String>>) {
    let (stage, stages) = watch::channel(Stage::default());
    let (trouble, troubles) = watch::channel(Vec::new());
    let task = ShutdownTask {
        places: Places::new(config.process.system_bus.clone()),
        periods: config.shutdown.clone().unwrap_or_default(),
        machine: conducted.machine,
        ending: conducted.ending,
        stage,
        trouble,
        events,
    };
    spawn(tasks, "shutdown of the machine", task.run(stop.clone()));
    (stages, troubles)
}

/// The parts that the workers' host shares with others.
struct Links {
    runtime: RuntimeClient,
    store: Store,
    pleg: PlegHandle,
    events: Recorder,
    node_ips: watch::Receiver<NodeIps>,
    handlers: Handlers,
}

fn host(
    config: &Config,
    node: &admission::NodeFacts,
    capacity: &NodeCapacity,
    links: Links,
) -> anyhow::Result<Host> {
    let owner: Box<str> = links.store.owner().into();
    let cgroups = Cgroups::detect(&cgroup_settings(config))?;
    let memory = node.allocatable.memory_bytes;
    let volumes = Volumes::open(&config.paths.root_dir, Some(memory))
        .map_err(|error| anyhow::anyhow!(error_chain(&error)))?;
    if let Err(error) = volumes.share_root() {
        // Only Bidirectional propagation needs it.
        tracing::warn!(err = %error, "cannot share the mounts of the root directory");
    }
    let files = HostFiles::new(HostFilePaths {
        root_dir: config.paths.root_dir.clone(),
        pod_logs_dir: config.paths.pod_logs_dir.clone(),
        links_dir: config.paths.container_links_dir.clone(),
        node_hosts: "/etc/hosts".into(),
        network_results_dir: "/var/lib/cni/results".into(),
    });
    Ok(Host {
        settings: host_settings(config, node, owner, capacity, &cgroups),
        leftovers: Leftovers::new(cgroups.clone(), volumes.clone(), files.clone()),
        volumes,
        files,
        images: Images::new(links.runtime.clone(), image_settings(config)?),
        handlers: links.handlers,
        starts: StartTurns::new(start_turns(config)),
        volume_turns: VolumeTurns::default(),
        user_namespaces: UserNamespaces::new(id_space(config)),
        node_ips: links.node_ips,
        runtime: links.runtime,
        store: links.store,
        pleg: links.pleg,
        events: links.events,
        cgroups,
    })
}

/// Marks the directories of pods that have a record, where an earlier release or an agent with
/// another owner id has made them.
fn mark_pod_dirs(host: &Host, loaded: &Loaded) {
    if !host.store.wants_marks() {
        return;
    }
    let pods = loaded.pods.iter();
    let pods = pods.flat_map(|(key, records)| records.iter().map(move |one| (&one.uid, key)));
    match host.volumes.mark_recorded(pods, &host.settings.owner) {
        Ok(()) => host.store.note_marked(),
        Err(error) => {
            tracing::warn!(err = %error_chain(&error), "cannot mark the directories of all pods");
        }
    }
}

fn base_view(config: &Config, node_name: &str) -> NodeView {
    NodeView {
        name: node_name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started_at: clock::now().wall.to_string(),
        notices: config.notices.clone(),
        ..NodeView::default()
    }
}

/// Spawns a task that can't fail.
pub(super) fn spawn(
    tasks: &mut Tasks,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    tasks.spawn(named(name, async move {
        task.await;
        Ok(())
    }));
}

/// A task with the name that it is reported under. All tasks are of one type: tokio's code for a
/// task is compiled once for each type of future.
pub(super) fn named(
    name: &'static str,
    task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> BoxFuture<'static, Ended> {
    async move { (name, task.await) }.boxed()
}
