//! Many pods come and go on one node: those of a Deployment that grows, changes and shrinks, and
//! those of a Job.

use super::{
    super::{
        node::{WAITS, is_ready, plain},
        scale::{DEPLOYMENTS, JOBS, deployment, job},
        support::say_loudly,
    },
    Run,
    bench::{Bench, Candidate, Timings},
    timeline::{Facts, Timeline},
};
use serde_json::{Value, json};

pub const TITLE: &str = "Many pods come and go";
const COMPLETIONS: usize = 50;

/// Pods of the Deployment that are to run.
#[derive(Clone, Copy)]
struct Wanted {
    replicas: usize,
    /// A label of their template.
    version: &'static str,
}

/// Plays it with one agent; `None` when it must be skipped.
pub fn timeline(candidate: &Candidate) -> Option<Timeline> {
    let bench = Bench::start(candidate, Timings::Real)?;
    bench.use_node_alone();
    let mut run = Run::begin(&bench, "nothing runs", Facts::new());
    run.step("a Deployment has 30 replicas", || {
        let mut web = deployment("web", WAITS);
        web["spec"]["replicas"] = json!(30);
        web["spec"]["template"]["metadata"]["labels"]["version"] = json!("1");
        bench.create(DEPLOYMENTS, &web);
    });
    run.wait_for_pods(&[HALF, ALL], Wanted { replicas: 30, version: "1" });
    run.step("their template changes", || {
        let labels = json!({ "labels": { "version": "2" } });
        bench.change_web(&json!({ "spec": { "template": { "metadata": labels } } }));
    });
    let everything = [HALF, ALL, OTHER_PODS, OTHER_CONTAINERS];
    run.wait_for_pods(&everything, Wanted { replicas: 30, version: "2" });
    for (mark, replicas, subjects) in [
        ("80 replicas are wanted", 80, [HALF, ALL]),
        ("no replica is wanted", 0, [OTHER_PODS, OTHER_CONTAINERS]),
    ] {
        run.step(mark, || bench.change_web(&json!({ "spec": { "replicas": replicas } })));
        run.wait_for_pods(&subjects, Wanted { replicas, version: "2" });
    }
    run.step("a Job has 50 completions, 10 pods at a time", || {
        bench.create(JOBS, &job("work", COMPLETIONS, 10, plain("work", "exit 0")));
    });
    let completions = || completions(&bench.pods());
    run.wait_for(&[HALF_COMPLETE, ALL_COMPLETE], completions);
    let timeline = run.timeline;
    bench.finish();
    Some(timeline)
}

impl Run<'_> {
    fn step(&mut self, mark: &str, act: impl FnOnce()) {
        // A run of many minutes shows how far it is.
        say_loudly(&format!("{:.1?}: {mark}", self.began.elapsed()));
        self.mark(mark);
        self.timeline.forget();
        act();
    }

    /// Notes when these facts about the pods come true, and waits for all of them.
    #[track_caller]
    fn wait_for_pods(&mut self, subjects: &[&str], wanted: Wanted) {
        let bench = self.bench;
        self.wait_for(subjects, || {
            let mut facts = wanted.facts(bench);
            facts.retain(|subject, _| subjects.contains(&&**subject));
            facts
        });
    }

    /// Looks until there is a fact about each of the subjects.
    #[track_caller]
    fn wait_for(&mut self, subjects: &[&str], look: impl Fn() -> Facts) {
        self.watch("the pods are as they are wanted", look, |timeline, _| {
            subjects.iter().all(|subject| !timeline.state(subject).is_empty())
        });
    }
}

const HALF: &str = "half of them";
const ALL: &str = "all of them";
const OTHER_PODS: &str = "other pods";
const OTHER_CONTAINERS: &str = "other containers";
const HALF_COMPLETE: &str = "half of the completions";
const ALL_COMPLETE: &str = "all completions";

impl Wanted {
    /// The goals that are reached.
    fn facts(self, bench: &Bench) -> Facts {
        // The pods are read first: a container that still runs after that has no object.
        let pods = bench.pods();
        let running = bench.running_pods();
        let fits = |pod: &&Value| {
            pod["metadata"]["labels"]["version"] == self.version
                && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let fitting: Vec<&Value> = pods.iter().filter(fits).collect();
        let ready = fitting.iter().filter(|pod| is_ready(pod)).count();
        let of_fitting = |uid: &String| fitting.iter().any(|pod| pod["metadata"]["uid"] == **uid);
        let no_more = fitting.len() <= self.replicas;
        reached([
            (HALF, "Ready", ready >= self.replicas / 2),
            (ALL, "Ready", ready >= self.replicas),
            (OTHER_PODS, "gone", no_more && pods.len() == fitting.len()),
            (OTHER_CONTAINERS, "gone", no_more && running.iter().all(of_fitting)),
        ])
    }
}

fn completions(pods: &[Value]) -> Facts {
    let succeeded = pods.iter().filter(|pod| pod["status"]["phase"] == "Succeeded").count();
    reached([
        (HALF_COMPLETE, "there", succeeded >= COMPLETIONS / 2),
        (ALL_COMPLETE, "there", succeeded >= COMPLETIONS),
    ])
}

/// The facts of which the condition holds.
fn reached<const N: usize>(facts: [(&str, &str, bool); N]) -> Facts {
    let reached = facts.into_iter().filter(|(_, _, holds)| *holds);
    reached.map(|(subject, state, _)| (subject.to_owned(), state.to_owned())).collect()
}
