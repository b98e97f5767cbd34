//! Many pods come and go on one node: those of a Deployment that grows, changes and shrinks, and
//! those of a Job.

use super::{
    super::{
        node::{WAITS, is_ready, plain},
        scale::{DEPLOYMENTS, JOBS, deployment, job},
        support::say_loudly,
    },
    bench::{Bench, Candidate, Timings},
    timeline::{Facts, Timeline, side_by_side},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

pub const TITLE: &str = "Many pods come and go";
const SLOWEST_STEP: Duration = Duration::from_secs(300);
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
    let mut play = Play {
        bench: &bench,
        began: Instant::now(),
        timeline: Timeline::begin("nothing runs", Facts::new()),
    };
    play.step("a Deployment has 30 replicas", |bench| {
        let mut web = deployment("web", WAITS);
        web["spec"]["replicas"] = json!(30);
        web["spec"]["template"]["metadata"]["labels"]["version"] = json!("1");
        bench.create(DEPLOYMENTS, &web);
    });
    play.until_so(&[HALF, ALL], Wanted { replicas: 30, version: "1" });
    play.step("their template changes", |bench| {
        let labels = json!({ "labels": { "version": "2" } });
        bench.change_web(&json!({ "spec": { "template": { "metadata": labels } } }));
    });
    let everything = [HALF, ALL, OTHER_PODS, OTHER_CONTAINERS];
    play.until_so(&everything, Wanted { replicas: 30, version: "2" });
    for (mark, replicas, subjects) in [
        ("80 replicas are wanted", 80, [HALF, ALL]),
        ("no replica is wanted", 0, [OTHER_PODS, OTHER_CONTAINERS]),
    ] {
        play.step(mark, |bench| bench.change_web(&json!({ "spec": { "replicas": replicas } })));
        play.until_so(&subjects, Wanted { replicas, version: "2" });
    }
    play.step("a Job has 50 completions, 10 pods at a time", |bench| {
        bench.create(JOBS, &job("work", COMPLETIONS, 10, plain("work", "exit 0")));
    });
    play.until(&[HALF_COMPLETE, ALL_COMPLETE], |bench| completions(&bench.pods()));
    let timeline = play.timeline;
    bench.finish();
    Some(timeline)
}

struct Play<'a> {
    bench: &'a Bench,
    began: Instant,
    timeline: Timeline,
}

impl Play<'_> {
    fn step(&mut self, mark: &str, act: impl FnOnce(&Bench)) {
        // A run of many minutes shows how far it is.
        say_loudly(&format!("{:.1?}: {mark}", self.began.elapsed()));
        self.timeline.mark(mark, self.began.elapsed());
        self.timeline.forget();
        act(self.bench);
    }

    #[track_caller]
    fn until_so(&mut self, subjects: &[&str], wanted: Wanted) {
        self.until(subjects, |bench| {
            let mut facts = wanted.facts(bench);
            facts.retain(|subject, _| subjects.contains(&&**subject));
            facts
        });
    }

    /// Notes facts until there is one about each of the subjects.
    #[track_caller]
    fn until(&mut self, subjects: &[&str], look: impl Fn(&Bench) -> Facts) {
        let begun = Instant::now();
        loop {
            let facts = look(self.bench);
            let is_over = subjects.iter().all(|subject| facts.contains_key(*subject));
            self.timeline.note(facts, self.began.elapsed());
            if is_over {
                return;
            }
            assert!(
                begun.elapsed() < SLOWEST_STEP,
                "not within {SLOWEST_STEP:?}:\n{}\n--- the agent's log: {}",
                side_by_side(&[("here", &self.timeline)]),
                self.bench.log_tail()
            );
            self.bench.pause();
        }
    }
}

const HALF: &str = "half of them";
const ALL: &str = "all of them";
const OTHER_PODS: &str = "other pods";
const OTHER_CONTAINERS: &str = "other containers";
const HALF_COMPLETE: &str = "half of the completions";
const ALL_COMPLETE: &str = "all completions";

impl Wanted {
    /// What is as it has to be.
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
