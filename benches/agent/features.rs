//! The act of features: what probes, ConfigMaps and the rotation of logs cost, and how soon they
//! act. The HTTPS API is in [`api`], pods of the API server are in [`crate::api_pods`]. Each part
//! has a stage of its own, so that it can be measured alone.

use crate::{
    api::api,
    api_pods::{api_pods, idle_api_pods},
    cluster::Programs,
    measure::{CALM, Plan, cpu_percent},
    probed::{Client, Server},
    process::{Process, cpu_of},
    results::{Figures, Row, SCRAPE_PERIODS, SCRAPES, UPDATE_MIB, UPDATES},
    sightings::percentile,
    stage::{Candidate, Moment, Stage, now, pause, seconds},
    support::{
        manifest::{FOREVER, Pod},
        registry::Registry,
    },
};
use serde_json::{Value, json};
use std::{fs, io::Write as _, os::unix::fs::MetadataExt as _, path::Path, time::Duration};
use tokio::time::Instant;

/// The parts, as `BENCH_FEATURES` calls them.
pub const PARTS: [&str; 11] = [
    "http", "exec", "liveness", "config", "logs", "update", "scrape", "memory", API, PODS,
    IDLE_PODS,
];
/// The parts that need a control plane.
pub const OF_CLUSTER: [&str; 3] = [API, PODS, IDLE_PODS];
const API: &str = "api";
const PODS: &str = "pods";
const IDLE_PODS: &str = "pods-idle";

/// HTTP probes of each pod. A startup probe ends with its first success, and a container has one
/// probe of each other kind, so they take two containers.
const PER_POD: usize = 3;
/// Pods whose exec probes run: each costs the runtime a process a second.
const EXEC_PODS: usize = 10;
const SETTLE: Duration = Duration::from_secs(5);
/// Of a log, before it is rotated.
const LOG_MIB: u64 = 10;
/// How fast a log is written, and for how long: past the kubelet's interval of 10 s.
const LOG_RATE_MIB: u64 = 200;
const LOG_TIME: Duration = Duration::from_secs(12);
/// What Prometheus reads of a node.
const SCRAPED: [&str; 4] =
    ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"];
/// Where the kubelet serves it without a cluster.
pub const READ_ONLY_PORT: u16 = 10_255;

/// One round of the parts that are asked for.
pub fn features(candidate: Candidate, plan: &Plan, programs: Programs<'_>, figures: &mut Figures) {
    let act = Act { candidate, plan, kubelet: programs.kubelet };
    for part in &plan.features {
        match part.as_str() {
            "http" => act.http(figures),
            "exec" => act.exec(figures),
            "liveness" => act.liveness(figures),
            "config" => act.config(figures),
            "logs" => act.logs(figures),
            "update" => act.update(figures),
            "scrape" => act.scrape(figures),
            "memory" => act.memory(figures),
            API => api(candidate, plan, programs, figures),
            PODS => api_pods(candidate, plan, programs, figures),
            IDLE_PODS => idle_api_pods(candidate, plan, programs, figures),
            other => panic!("BENCH_FEATURES: {other:?} is none of {PARTS:?}"),
        }
    }
}

struct Act<'a> {
    candidate: Candidate,
    plan: &'a Plan,
    kubelet: Option<&'a Path>,
}

impl Act<'_> {
    fn begin(&self, lines: &str) -> Stage {
        let stage = Stage::with(self.candidate, self.kubelet, lines);
        stage.start();
        stage.wait_until_well();
        pause(SETTLE);
        stage
    }

    /// A full node with three HTTP probes a second for each pod: CPU, and how regular they are while
    /// the machine is busy. The floor has no pods: its requests go to the same server.
    fn http(&self, figures: &mut Figures) {
        let server = Server::start();
        if self.candidate == Candidate::Floor {
            let client = Client::start(&server, self.plan.pods * PER_POD);
            self.measure_http(Process::of(client.pid()), &server, figures);
            return;
        }
        let stage = self.begin("");
        let pods: Vec<Pod> = (0..self.plan.pods).map(|n| probed(n, server.port())).collect();
        stage.drop_pods(&pods);
        wait_for_probes(&stage, &server, pods.len() * PER_POD);
        self.measure_http(stage.agent().unwrap(), &server, figures);
    }

    fn measure_http(&self, agent: Process, server: &Server, figures: &mut Figures) {
        pause(CALM);
        server.forget();
        let percent = cpu_percent(agent, self.plan.idle);
        let asked: usize = server.heard().values().map(Vec::len).sum();
        let wanted = self.plan.pods * PER_POD;
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let per_second = asked as f64 / self.plan.idle.as_secs_f64();
        crate::progress(&format!("    {per_second:.0} probes a second, {wanted} wanted"));
        figures.add(Row::ProbeCpu, self.candidate, percent);
        let load = Load::start();
        pause(SETTLE);
        server.forget();
        pause(self.plan.idle);
        let heard = server.heard();
        drop(load);
        figures.add(Row::ProbeJitter, self.candidate, 1000.0 * lateness(&heard));
    }

    /// Exec probes: the agent's CPU, and what they cost containerd and its shims. `runc exec` is
    /// not counted: its processes come and go within the window.
    fn exec(&self, figures: &mut Figures) {
        if self.candidate == Candidate::Floor {
            return;
        }
        let stage = self.begin("");
        let probe =
            json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 5 });
        let pods: Vec<Pod> = (0..EXEC_PODS)
            .map(|n| {
                Pod::running(&format!("exec-{n}")).set("containers/0/livenessProbe", probe.clone())
            })
            .collect();
        stage.drop_pods(&pods);
        stage.started(&pods);
        pause(SETTLE * 2);
        let runtime = stage.runtime();
        let (before, begun) = (cpu_of(&runtime), Instant::now());
        figures.add(
            Row::ExecCpu,
            self.candidate,
            cpu_percent(stage.agent().unwrap(), self.plan.idle),
        );
        let used = cpu_of(&runtime).saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
        figures.add(Row::ExecRuntimeCpu, self.candidate, percent);
    }

    /// From the last good answer to a liveness probe of 1 s until the container runs again.
    fn liveness(&self, figures: &mut Figures) {
        let server = Server::start();
        let stage = self.begin("");
        for number in 0..self.plan.singles {
            let path = format!("/alive-{number}");
            let probe = json!({
                "httpGet": { "host": "127.0.0.1", "port": server.port(), "path": path },
                "periodSeconds": 1, "failureThreshold": 1,
            });
            let pod = Pod::running(&format!("alive-{number}"));
            let pod = [pod.set("containers/0/livenessProbe", probe)];
            let took = match stage.floor() {
                // Its probe fails exactly one period later, and the container ends by SIGTERM.
                Some(floor) => {
                    let started = floor.run(&pod[0]);
                    stage.started(&pod);
                    pause(Duration::from_secs(1));
                    let victim = stage.victim(&pod[0]);
                    let begun = floor.restart_on_exit(&started, || victim.terminate());
                    let took = 1.0 + seconds(begun, stage.restarted(&pod[0], &victim.id));
                    floor.stop(&started);
                    took
                }
                None => {
                    stage.drop_pods(&pod);
                    stage.started(&pod);
                    let victim = stage.victim(&pod[0]);
                    let good = next_probe(&stage, &server, &path);
                    server.fail(&path);
                    let back = stage.restarted(&pod[0], &victim.id);
                    server.fail("");
                    stage.remove_pods(&pod);
                    stage.gone(&pod);
                    seconds(good, back)
                }
            };
            figures.add(Row::Liveness, self.candidate, took);
        }
    }

    /// From the edit of a ConfigMap's file until a container reads the new data. The kubelet reads
    /// none from files.
    fn config(&self, figures: &mut Figures) {
        if self.candidate != Candidate::Nodelet {
            return;
        }
        let stage = self.begin("");
        stage.write_manifest("settings.yaml", &config_map("first"));
        let pod = [with_config(Pod::running("reader"))];
        stage.drop_pods(&pod);
        stage.started(&pod);
        let inside = format!("/proc/{}/root/settings/value", stage.victim(&pod[0]).pid());
        for number in 0..self.plan.singles {
            // Spread over the phases of loops that wake up every second.
            pause(SETTLE + Duration::from_millis(370 * u64::try_from(number).unwrap()));
            let value = format!("value-{number}");
            let begun = stage.write_manifest("settings.yaml", &config_map(&value));
            let seen = stage.wait("the container reads it", Duration::from_millis(2), || {
                let read = fs::read_to_string(&inside).unwrap_or_default();
                (read == value).then(now)
            });
            figures.add(Row::ConfigSeen, self.candidate, seconds(begun, seen));
        }
    }

    /// How far a log that is written fast gets past its size before it is rotated.
    fn logs(&self, figures: &mut Figures) {
        if self.candidate == Candidate::Floor {
            return;
        }
        let stage = self.begin(&format!("containerLogMaxSize: {LOG_MIB}Mi\n"));
        let pod = [Pod::running("talker")];
        stage.drop_pods(&pod);
        stage.started(&pod);
        pause(SETTLE);
        let log = stage.log_of(&pod[0]);
        let pipe = format!("/proc/{}/fd/1", stage.victim(&pod[0]).pid());
        let writer = std::thread::spawn(move || talk(&pipe));
        // After a rotation, another file has this name.
        let mut largest = 0;
        while !writer.is_finished() {
            if let Ok(file) = fs::metadata(&log) {
                largest = largest.max(file.size());
            }
            pause(Duration::from_millis(1));
        }
        let written = writer.join().unwrap();
        let rate = written / LOG_TIME.as_secs();
        crate::progress(&format!("    {rate} MiB/s written to the log"));
        #[expect(clippy::cast_precision_loss, reason = "some gigabytes")]
        let past = largest.saturating_sub(LOG_MIB << 20) as f64 / f64::from(1 << 20);
        figures.add(Row::LogPast, self.candidate, past);
    }

    /// How long nothing of a pod runs when its manifest names another image, which the registry has.
    fn update(&self, figures: &mut Figures) {
        let stage = self.begin("");
        self.updates(0, &stage, figures);
        if self.candidate == Candidate::Nodelet {
            stage.kill_agent();
            stage.configure_own(UPDATES[1]);
            stage.start();
            stage.wait_until_well();
            self.updates(1, &stage, figures);
        }
    }

    fn updates(&self, how: usize, stage: &Stage, figures: &mut Figures) {
        let Some(mut registry) = Registry::prepare(stage.slot()) else { return };
        registry.start(false);
        let old = Pod::running("app");
        for number in 0..self.plan.singles {
            let source = stage.floor().is_none().then_some(&registry);
            let image = stage.make_image(&format!("app-{how}-{number}"), UPDATE_MIB, source);
            let new = Pod::running("app").set("containers/0/image", image);
            let started = stage.floor().map(|floor| (floor, floor.run(&old)));
            if started.is_none() {
                stage.drop_pods(std::slice::from_ref(&old));
            }
            stage.started(std::slice::from_ref(&old));
            pause(SETTLE);
            let victim = stage.victim(&old);
            let end = std::thread::spawn({
                let process = format!("/proc/{}", victim.pid());
                move || moment_without(Path::new(&process))
            });
            let new_started = match started {
                Some((floor, started)) => {
                    floor.stop(&started);
                    floor.remove(&started);
                    Some((floor, floor.run(&new)))
                }
                None => {
                    stage.drop_pods(std::slice::from_ref(&new));
                    None
                }
            };
            let back = stage.restarted(&new, &victim.id);
            figures.add(Row::Downtime(how), self.candidate, seconds(end.join().unwrap(), back));
            if let Some((floor, started)) = new_started {
                floor.stop(&started);
                floor.remove(&started);
            } else {
                stage.remove_pods(std::slice::from_ref(&new));
            }
            stage.gone(std::slice::from_ref(&new));
        }
    }

    /// What it costs a full node to be scraped, with containerd's share, more than when it is not; and
    /// what memory that takes.
    fn scrape(&self, figures: &mut Figures) {
        let lines = match self.candidate {
            Candidate::Floor => return,
            Candidate::Nodelet => "",
            Candidate::Kubelet => &format!("readOnlyPort: {READ_ONLY_PORT}\n"),
        };
        let stage = self.begin(lines);
        let pods: Vec<Pod> =
            (0..self.plan.pods).map(|n| Pod::running(&format!("scraped-{n}"))).collect();
        stage.drop_pods(&pods);
        stage.all_started(&pods);
        pause(CALM * 2);
        let agent = stage.agent().unwrap();
        let processes = [stage.runtime(), vec![agent]].concat();
        let before = agent.memory_mib("VmRSS");
        let (used, begun) = (cpu_of(&processes), Instant::now());
        pause(SCRAPE_PERIODS[0] * SCRAPES);
        let used = cpu_of(&processes).saturating_sub(used);
        let idle = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
        crate::progress(&format!("    {idle:.2} % without scrapes"));
        for (place, period) in SCRAPE_PERIODS.into_iter().enumerate() {
            let (used, begun) = (cpu_of(&processes), Instant::now());
            let mut bytes = 0;
            let mut due = begun;
            while begun.elapsed() < self.plan.idle.max(period * SCRAPES) {
                bytes = SCRAPED.iter().map(|path| stage.scraped(path).len()).sum();
                due += period;
                pause(due.saturating_duration_since(Instant::now()));
            }
            let used = cpu_of(&processes).saturating_sub(used);
            let percent = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
            crate::progress(&format!("    {bytes} bytes every {period:?}"));
            figures.add(Row::ScrapeCpu(place), self.candidate, percent - idle);
        }
        figures.add(Row::ScrapeRss, self.candidate, agent.memory_mib("VmRSS") - before);
    }

    /// What a full node takes with probes, a ConfigMap for each pod and rotation, more than without.
    fn memory(&self, figures: &mut Figures) {
        if self.candidate != Candidate::Nodelet {
            return;
        }
        let server = Server::start();
        let mut rss = [true, false].map(|with| {
            let stage = self.begin(if with { "containerLogMaxSize: 1Mi\n" } else { "" });
            let pods: Vec<Pod> = (0..self.plan.pods)
                .map(|n| match with {
                    true => with_config(probed(n, server.port())),
                    // The same containers without anything about them.
                    false => Pod::running(&format!("probed-{n}")).container("other", FOREVER),
                })
                .collect();
            if with {
                stage.write_manifest("settings.yaml", &config_map("first"));
            }
            stage.drop_pods(&pods);
            stage.all_started(&pods);
            pause(CALM * 2);
            stage.agent().unwrap().memory_mib("VmRSS")
        });
        crate::progress(&format!("    RSS with: {:.1} MiB, without: {:.1} MiB", rss[0], rss[1]));
        rss[0] -= rss[1];
        figures.add(Row::FeaturesRss, self.candidate, rss[0]);
    }
}

/// A pod that asks the server three times a second: two probes of one container and one of another.
fn probed(number: usize, port: u16) -> Pod {
    let probe = |nth: usize| {
        let path = format!("/probe-{}", number * PER_POD + nth);
        json!({ "httpGet": { "host": "127.0.0.1", "port": port, "path": path }, "periodSeconds": 1 })
    };
    Pod::running(&format!("probed-{number}"))
        .container("other", FOREVER)
        .set("containers/0/livenessProbe", probe(0))
        .set("containers/0/readinessProbe", probe(1))
        .set("containers/1/livenessProbe", probe(2))
}

fn with_config(pod: Pod) -> Pod {
    pod.set("volumes", json!([{ "name": "settings", "configMap": { "name": "settings" } }]))
        .set("containers/0/volumeMounts", json!([{ "name": "settings", "mountPath": "/settings" }]))
}

fn config_map(value: &str) -> String {
    let object: Value = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "settings", "namespace": "default" },
        "data": { "value": value },
    });
    object.to_string()
}

/// Waits until every path was asked for.
fn wait_for_probes(stage: &Stage, server: &Server, paths: usize) {
    stage.wait("every probe is made", Duration::from_millis(250), || {
        (server.heard().len() == paths).then_some(())
    });
}

/// Waits for the next request for a path, so that the one after it is a period away.
fn next_probe(stage: &Stage, server: &Server, path: &str) -> Moment {
    let last = || server.heard().get(path).and_then(|all| all.last().copied());
    let begun = now();
    stage.wait("the next probe is made", Duration::from_millis(2), || {
        last().filter(|at| *at > begun)
    })
}

/// By how many seconds the distance of two probes differs from their period, for all but one in a
/// hundred.
fn lateness(heard: &std::collections::BTreeMap<String, Vec<Moment>>) -> f64 {
    let pairs = heard.values().flat_map(|all| all.windows(2));
    let differences: Vec<f64> = pairs.map(|pair| (seconds(pair[0], pair[1]) - 1.0).abs()).collect();
    percentile(&differences, 99)
}

/// Processes outside pods that leave the machine nothing to spare: two for each CPU.
struct Load(Vec<std::process::Child>);

impl Load {
    fn start() -> Self {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let busy = || {
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
        };
        Self((0..2 * cpus).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// Waits until a process is gone; gives when that was seen.
fn moment_without(process: &Path) -> Moment {
    while process.exists() {
        pause(Duration::from_millis(1));
    }
    now()
}

/// Writes lines to a container's standard output at a pace; gives the MiB that went through.
fn talk(pipe: &str) -> u64 {
    let mut output = fs::File::options().write(true).open(pipe).unwrap();
    let line = [&[b'x'; 1023][..], b"\n"].concat().repeat(1024);
    let (begun, mut written) = (Instant::now(), 0);
    while begun.elapsed() < LOG_TIME {
        output.write_all(&line).unwrap();
        written += 1;
        let due = Duration::from_micros(written * 1_000_000 / LOG_RATE_MIB);
        let early = due.saturating_sub(begun.elapsed());
        if early > Duration::from_millis(2) {
            pause(early);
        }
    }
    written
}
