use super::*;
use crate::model::{
    ConditionState, FileReport, FileVerdict, PodKey, PodStats, Pressure, Problem, RuntimeView,
    Signal, SignalView, SourceKind, SourceView,
};
use serde_json::{from_value, json};

const HOSTILE: &str = "<script>alert(1)</script>\"'&\u{202e}\u{1b}[31m";

fn now() -> Timestamp {
    "2026-11-26T10:00:00Z".parse().unwrap()
}

fn pod(name: &str, waiting: Option<&str>) -> PodView {
    let state = match waiting {
        Some(message) => json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}}),
        None => json!({"running": {}}),
    };
    let spec = json!({"containers": [{"name": "c", "image": "x"}]});
    from_value(json!({
        "key": {"namespace": "default", "name": name}, "uid": name, "terminating": false,
        "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
        "status": {
            "phase": "Running", "startTime": "2026-11-26T09:00:00Z", "podIP": "10.1.0.7",
            "containerStatuses": [{
                "name": "c", "image": "x", "imageID": "", "ready": waiting.is_none(),
                "restartCount": 3, "state": state,
            }],
        },
    }))
    .unwrap()
}

fn facts(pods: Vec<PodView>) -> Facts {
    let node = NodeView { name: "n1".into(), version: "1.0".into(), ..NodeView::default() };
    Facts {
        node: Arc::new(node),
        pods: pods.into_iter().map(Arc::new).collect(),
        events: Vec::new(),
        stats: Arc::default(),
        history: Arc::default(),
        now: now(),
        live: true,
    }
}

fn page(facts: &Facts) -> String {
    let (head, tail) = facts.around_pods();
    let rows = facts.pods.iter().map(|view| facts.pod_row(view, false));
    head + &rows.collect::<String>() + &tail
}

#[test]
fn a_healthy_node_says_so() {
    let facts = facts(vec![pod("web", None)]);
    let page = page(&facts);
    assert!(page.contains("Everything runs as it should."), "{page}");
    assert!(page.contains("<title>n1: pods 1 in all, 1 running</title>"), "{page}");
    for cell in ["<td data-name=\"Ready\">1/1</td>", "class=\"state\">Running</td>", "10.1.0.7"] {
        assert!(page.contains(cell), "{cell} in {page}");
    }
    assert!(!page.contains("<svg"), "nothing was measured yet");
}

#[test]
fn troubles_stand_at_the_top() {
    let mut facts = facts(vec![pod("web", Some("back-off 10s restarting failed container"))]);
    let since = now();
    let node = Arc::make_mut(&mut facts.node);
    node.runtime =
        RuntimeView { not_ready: Some("containerd is gone".into()), ..RuntimeView::default() };
    node.conditions.pressure = [(Pressure::Disk, ConditionState { holds: true, since })].into();
    node.warnings.push("the disk is full".into());
    let page = page(&facts);
    assert!(page.contains("<title>n1: 4 troubles</title>"), "{page}");
    for trouble in [
        "<li>The runtime is not ready: containerd is gone</li>",
        "<li>The node has DiskPressure</li>",
        "<li>the disk is full</li>",
        "<li>Pod default/web: back-off 10s restarting failed container</li>",
    ] {
        assert!(page.contains(trouble), "{trouble} in {page}");
    }
}

#[test]
fn a_signal_is_a_bar_with_its_thresholds() {
    let mut facts = facts(Vec::new());
    Arc::make_mut(&mut facts.node).pressure.signals = vec![SignalView {
        signal: Signal::MemoryAvailable,
        available: Some(512 << 20),
        capacity: Some(2 << 30),
        thresholds: vec!["100Mi".into()],
        marks: vec![100 << 20],
        crossed: false,
        since: Some("2026-11-26T09:57:00Z".parse().unwrap()),
    }];
    let page = page(&facts);
    assert!(page.contains("<p>No pods.</p>"), "{page}");
    assert!(page.contains("512.0 MiB of 2.0 GiB"), "{page}");
    assert!(page.contains("ok for 3m"), "{page}");
    assert!(page.contains(r#"class="taken" width="225""#), "{page}");
}

#[test]
fn graphs_begin_with_the_second_sample() {
    let mut facts = facts(vec![pod("web", None)]);
    let memory = |working_set| crate::model::MemoryStats { working_set, ..Default::default() };
    let used = |memory| crate::model::CgroupStats { memory: Some(memory), ..Default::default() };
    let stats = |bytes| Stats {
        pods: vec![PodStats {
            key: PodKey::new("default", "web"),
            uid: "web".into(),
            started_at: None,
            cgroup: String::new(),
            stats: Some(used(memory(bytes))),
            containers: Vec::new(),
            network: Vec::new(),
            volumes: Vec::new(),
            claims: Vec::new(),
            ephemeral_storage: None,
        }],
        ..Stats::default()
    };
    let history = Arc::make_mut(&mut facts.history);
    for at in [0, 5] {
        let at = std::time::Duration::from_secs(at);
        history.push(crate::model::UseSample::of(&stats(5 << 20), at));
    }
    facts.stats = Arc::new(stats(5 << 20));
    let page = page(&facts);
    assert!(page.contains("<span class=\"amount\">5.0 MiB</span><svg class=\"graph\""), "{page}");
    assert_eq!(page.matches("<polyline").count(), 1, "only memory was measured: {page}");
}

#[test]
fn hostile_text_is_only_text() {
    let mut facts = facts(vec![pod("web", Some(HOSTILE))]);
    facts.events = vec![
        from_value(json!({
            "metadata": {}, "involvedObject": {"namespace": HOSTILE, "name": HOSTILE},
            "reason": HOSTILE, "message": HOSTILE, "type": "Warning",
        }))
        .unwrap(),
    ];
    let node = Arc::make_mut(&mut facts.node);
    for text in [&mut node.name, &mut node.version] {
        HOSTILE.clone_into(text);
    }
    node.warnings.push(HOSTILE.into());
    node.notices.push(HOSTILE.into());
    node.shutdown = Some(HOSTILE.into());
    let rejected = FileVerdict::Rejected {
        key: Some(PodKey::new(HOSTILE, HOSTILE)),
        object: None,
        position: Default::default(),
        problems: vec![Problem {
            position: Default::default(),
            path: HOSTILE.into(),
            message: HOSTILE.into(),
        }],
        last_good: true,
    };
    let source = SourceView {
        error: Some(HOSTILE.into()),
        files: vec![FileReport { location: HOSTILE.into(), verdicts: vec![rejected] }],
        ..SourceView::empty(SourceKind::File, HOSTILE)
    };
    node.sources.push(source.into());
    let page = page(&facts);
    let own = page.replace(&format!("<script>{SCRIPT}</script>"), "");
    assert!(!own.contains("<script"), "{own}");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;"), "{page}");
    assert!(!own.contains(['\u{202e}', '\u{1b}']), "{own}");
}

#[test]
fn a_page_that_was_saved_stays_as_it_is() {
    let mut facts = facts(Vec::new());
    facts.live = false;
    let page = page(&facts);
    assert!(!page.contains("<script") && !page.contains("http-equiv"), "{page}");
    assert!(page.contains("<style>"));
    for own in [STYLE, SCRIPT] {
        assert!(!own.contains("</"), "it would end its element");
        assert!(!own.contains("//"), "nothing comes from elsewhere");
    }
}
