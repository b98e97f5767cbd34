//! The schedule of probes, in steps of virtual time.

#![allow(clippy::needless_pass_by_value, reason = "json! reads best where it is passed")]

use super::*;
use crate::model::ProbeResults;
use serde_json::json;

const BOOT: u64 = 1000;

/// `seconds` after the start of the containers, which is 100 s after the start of the agent.
fn at(seconds: f64) -> Now {
    let since = Duration::from_secs_f64(seconds);
    Now { boot: Duration::from_secs(BOOT) + since, wall: started_at() + since }
}

fn started_at() -> Timestamp {
    "2026-11-20T10:00:00Z".parse().unwrap()
}

fn agent_start() -> Now {
    let before = Duration::from_secs(100);
    Now { boot: at(0.0).boot - before, wall: started_at() - before }
}

fn key() -> PodKey {
    PodKey::new("default", "web")
}

fn pod(probes: serde_json::Value) -> Arc<k8s::Pod> {
    let mut container = json!({"name": "web"});
    for (name, probe) in probes.as_object().unwrap() {
        container[format!("{name}Probe")] = probe.clone();
    }
    Arc::new(serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap())
}

fn instance(id: &str, started: bool) -> ProbedInstance {
    ProbedInstance { id: id.into(), name: "web".into(), started_at: started_at(), started }
}

fn probed(pod: &Arc<k8s::Pod>, instances: Vec<ProbedInstance>) -> ProbedPod {
    ProbedPod { uid: "u".into(), pod: Arc::clone(pod), terminating: false, instances }
}

fn failed() -> Finding {
    Finding::Failure("refused".to_owned())
}

struct Rig {
    prober: Prober,
    pod: Arc<k8s::Pod>,
}

impl Rig {
    /// One container, `c1`, which has just started.
    fn new(probes: serde_json::Value, started: bool) -> Self {
        let mut rig = Self { prober: Prober::new(agent_start()), pod: pod(probes) };
        rig.runs(vec![instance("c1", started)], 0.0);
        rig
    }

    fn runs(&mut self, instances: Vec<ProbedInstance>, seconds: f64) -> bool {
        let probed = probed(&self.pod, instances);
        self.prober.observe(&key(), Some(&probed), at(seconds))
    }

    /// The attempts that begin at this time: kind and container instance.
    fn begin(&mut self, seconds: f64) -> Vec<Attempt> {
        self.prober.begin(at(seconds))
    }

    fn finish(&mut self, attempt: &Attempt, finding: &Finding, seconds: f64) -> Attempted {
        self.prober.finish(attempt.id, finding, at(seconds)).expect("the probe is there")
    }

    /// Makes the attempt that is due now, and takes its finding in at the same time.
    fn attempt(&mut self, finding: &Finding, seconds: f64) -> Attempted {
        let attempts = self.begin(seconds);
        assert_eq!(attempts.len(), 1, "one attempt at {seconds} s");
        self.finish(&attempts[0], finding, seconds)
    }

    fn next(&self) -> Option<f64> {
        Some((self.prober.wake_at()? - at(0.0).boot).as_secs_f64())
    }

    fn results(&self) -> ProbeResults {
        self.prober.results(&key()).get(&"c1".into()).copied().unwrap_or_default()
    }
}

#[test]
fn a_probe_begins_after_its_delay_and_keeps_its_rhythm() {
    let mut rig =
        Rig::new(json!({"readiness": {"initialDelaySeconds": 5, "periodSeconds": 3}}), true);
    assert_eq!(rig.next(), Some(5.0));
    assert!(rig.begin(4.9).is_empty());
    let first = rig.begin(5.0).remove(0);
    assert_eq!((first.kind, first.timeout), (ProbeKind::Readiness, Duration::from_secs(1)));
    assert_eq!(rig.next(), None, "the same probe is never tried twice at once");
    rig.finish(&first, &Finding::Success, 5.8);
    assert_eq!(rig.next(), Some(8.0));
    // One that took longer than its period is followed at once.
    let second = rig.begin(8.2).remove(0);
    rig.finish(&second, &Finding::Success, 12.0);
    assert_eq!(rig.next(), Some(12.0));
}

#[test]
fn a_result_changes_after_as_many_attempts_as_the_threshold_says() {
    let thresholds = json!({"periodSeconds": 1, "successThreshold": 2, "failureThreshold": 3});
    let mut rig = Rig::new(json!({"readiness": thresholds}), true);
    let findings = "ssfssfffsfss".chars().enumerate();
    let mut changes = Vec::new();
    for (second, found) in findings {
        let finding = if found == 's' { Finding::Success } else { failed() };
        if rig.attempt(&finding, second as f64).changed {
            changes.push((second, rig.results().readiness));
        }
    }
    assert_eq!(changes, [(1, Some(true)), (7, Some(false)), (11, Some(true))]);
}

#[test]
fn an_error_counts_neither_way_and_is_an_event() {
    let mut rig = Rig::new(json!({"liveness": {"periodSeconds": 1, "failureThreshold": 2}}), true);
    rig.attempt(&failed(), 0.0);
    let attempted = rig.attempt(&Finding::Error("no runtime".to_owned()), 1.0);
    assert!(!attempted.changed);
    let event = attempted.event.unwrap();
    let words = "Liveness probe errored and resulted in unknown state: no runtime";
    assert_eq!((event.reason, event.message.as_str()), ("Unhealthy", words));
    let attempted = rig.attempt(&failed(), 2.0);
    assert!(attempted.changed, "the error did not begin a new row");
    let event = attempted.event.unwrap();
    assert_eq!(event.message, "Liveness probe failed: refused");
    let path = match event.target {
        EventTarget::Pod { field_path, .. } => field_path,
        EventTarget::Node => None,
    };
    assert_eq!(path.as_deref(), Some("spec.containers{web}"));
}

#[test]
fn a_warning_is_a_success_that_is_told() {
    let mut rig = Rig::new(json!({"readiness": {}}), true);
    let attempted = rig.attempt(&Finding::Warning("redirected".to_owned()), 0.0);
    assert_eq!(rig.results().readiness, Some(true));
    assert_eq!(attempted.event.unwrap().reason, "ProbeWarning");
    assert_eq!(rig.attempt(&Finding::Success, 10.0).event, None);
}

#[test]
fn other_probes_wait_until_the_container_has_started() {
    let startup = json!({"periodSeconds": 2, "failureThreshold": 5});
    let probes = json!({"startup": startup, "liveness": {}, "readiness": {}});
    let mut rig = Rig::new(probes, false);
    assert!(!rig.attempt(&failed(), 0.0).changed);
    assert!(rig.begin(1.9).is_empty());
    assert!(rig.attempt(&Finding::Success, 2.0).changed);
    let kinds: Vec<ProbeKind> = rig.begin(2.0).iter().map(|attempt| attempt.kind).collect();
    assert_eq!(kinds, [ProbeKind::Liveness, ProbeKind::Readiness]);
    assert_eq!(rig.results().startup, Some(true));
    // A view from before the startup changes nothing.
    rig.runs(vec![instance("c1", false)], 2.1);
    assert_eq!(rig.results().startup, Some(true));
    assert!(rig.begin(3.0).is_empty());
}

#[test]
fn nothing_is_asked_of_an_instance_that_is_to_be_killed() {
    let mut rig = Rig::new(json!({"startup": {"failureThreshold": 1}, "liveness": {}}), false);
    rig.attempt(&failed(), 0.0);
    assert_eq!((rig.next(), rig.results().fatal()), (None, Some(ProbeKind::Startup)));

    let mut rig = Rig::new(json!({"liveness": {"failureThreshold": 1}}), true);
    rig.attempt(&failed(), 0.0);
    assert_eq!((rig.next(), rig.results().fatal()), (None, Some(ProbeKind::Liveness)));
    // Its successor begins anew.
    assert!(rig.runs(vec![instance("c2", true)], 5.0), "the results of the first are gone");
    assert_eq!(rig.prober.results(&key()), PodProbes::new());
    assert_eq!(rig.begin(5.0)[0].instance, "c2".into());
}

#[test]
fn an_attempt_on_an_instance_that_has_ended_counts_for_nothing() {
    let mut rig = Rig::new(json!({"liveness": {"failureThreshold": 1}}), true);
    let attempt = rig.begin(0.0).remove(0);
    rig.runs(Vec::new(), 1.0);
    assert_eq!(rig.prober.finish(attempt.id, &failed(), at(2.0)), None);
    assert_eq!((rig.next(), rig.prober.views(&key()).len()), (None, 0));
}

#[test]
fn a_pod_that_is_being_stopped_is_asked_for_its_readiness_alone() {
    let mut rig = Rig::new(json!({"liveness": {}, "readiness": {}}), true);
    let attempts = rig.begin(0.0);
    for attempt in &attempts {
        rig.finish(attempt, &Finding::Success, 0.0);
    }
    let terminating =
        ProbedPod { terminating: true, ..probed(&rig.pod, vec![instance("c1", true)]) };
    rig.prober.observe(&key(), Some(&terminating), at(1.0));
    let kinds: Vec<ProbeKind> = rig.begin(10.0).iter().map(|attempt| attempt.kind).collect();
    assert_eq!(kinds, [ProbeKind::Readiness]);
    assert_eq!(rig.results().readiness, Some(true));
}

#[test]
fn after_a_restart_of_the_agent_first_attempts_are_spread() {
    let pod = pod(json!({"readiness": {"periodSeconds": 10}}));
    // The agent starts 50 s after the containers.
    let mut prober = Prober::new(at(50.0));
    for n in 0..50 {
        let key = PodKey::new("default", &format!("web-{n}"));
        let probed = probed(&pod, vec![instance(&format!("c{n}"), true)]);
        prober.observe(&key, Some(&probed), at(51.0));
    }
    let tenths: Vec<usize> =
        (0..10).map(|tenth| prober.begin(at(51.0 + f64::from(tenth) + 0.99)).len()).collect();
    assert_eq!(tenths.iter().sum::<usize>(), 50, "{tenths:?}");
    assert!(tenths.iter().all(|count| *count < 15), "{tenths:?}");
}

#[test]
fn an_instance_that_has_started_before_is_not_asked_again() {
    let mut prober = Prober::new(at(50.0));
    let pod = pod(json!({"startup": {}, "liveness": {"periodSeconds": 1}}));
    prober.observe(&key(), Some(&probed(&pod, vec![instance("c1", true)])), at(52.0));
    let kinds: Vec<ProbeKind> = prober.begin(at(53.0)).iter().map(|a| a.kind).collect();
    assert_eq!(kinds, [ProbeKind::Liveness]);
}

#[test]
fn a_view_tells_the_last_attempt_and_the_last_failure() {
    let mut rig = Rig::new(json!({"readiness": {"periodSeconds": 1}}), true);
    rig.attempt(&failed(), 0.0);
    rig.attempt(&Finding::Success, 1.0);
    let views = rig.prober.views(&key());
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].result, Some(true));
    assert_eq!(views[0].last, Some((true, at(1.0).wall)));
    assert_eq!(views[0].last_failure, Some(("refused".into(), at(0.0).wall)));
}
