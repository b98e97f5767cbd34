use super::*;
use crate::model::k8s;

fn pod(name: &str, uid: &str, location: &str) -> Arc<DesiredPod> {
    Arc::new(DesiredPod {
        key: PodKey::new("default", name),
        uid: uid.into(),
        revision: "r".into(),
        pod: Arc::new(k8s::Pod::default()),
        origin: Origin {
            source: SourceKind::File,
            location: location.into(),
            document: 0,
            line: 1,
        },
    })
}

fn source(knowledge: Knowledge, pods: Vec<Arc<DesiredPod>>) -> Arc<SourceSnapshot> {
    let view = Arc::new(SourceView::empty(SourceKind::File, "/m"));
    let unconfirmed = BTreeSet::new();
    let (kind, ends) = (SourceKind::File, BTreeMap::new());
    Arc::new(SourceSnapshot { kind, knowledge, pods, unconfirmed, ends, view })
}

fn kept(desired: &Desired) -> Vec<(String, &str, &str)> {
    let pods = desired.pods.iter();
    pods.map(|(key, pod)| (key.to_string(), pod.uid.as_str(), &*pod.origin.location)).collect()
}

#[test]
fn the_running_one_of_two_pods_of_a_name_stays() {
    let pods = vec![pod("web", "1", "/m/a.yaml"), pod("web", "2", "/m/b.yaml")];
    let desired =
        merge(&[source(Knowledge::Complete, pods)], &|_| None, &|_| Some(PodUid::from("2")));
    assert_eq!(kept(&desired), [("default/web".to_owned(), "2", "/m/b.yaml")]);
    assert_eq!(
        desired.duplicates[0].message,
        "duplicate pod name \"default/web\": the one in /m/b.yaml (line 1) is used, the one in /m/a.yaml (line 1) is ignored"
    );
    assert_eq!(&*desired.duplicates[0].dropped.location, "/m/a.yaml");
}

#[test]
fn the_first_duplicate_by_location_is_taken_while_none_runs() {
    let (a, b) = (pod("web", "1", "/m/a.yaml"), pod("web", "2", "/m/b.yaml"));
    for pods in [vec![a.clone(), b.clone()], vec![b, a]] {
        let sources = [source(Knowledge::Complete, pods)];
        for running in [None, Some(PodUid::from("3"))] {
            let desired = merge(&sources, &|_| None, &|_| running.clone());
            assert_eq!(kept(&desired), [("default/web".to_owned(), "1", "/m/a.yaml")]);
        }
    }
}

fn of(kind: SourceKind, pod: &DesiredPod) -> Arc<DesiredPod> {
    let origin = Origin { source: kind, ..pod.origin.clone() };
    Arc::new(DesiredPod { origin, ..pod.clone() })
}

#[test]
fn the_manifest_in_use_stays_in_use_when_it_is_edited() {
    let (file, http) = (SourceKind::File, SourceKind::Http);
    let at = |kind, uid, location| of(kind, &pod("web", uid, location));
    let old = at(file, "1", "/m/a.yaml");
    for (used, edited) in [
        (at(http, "2", "http://h"), at(http, "4", "http://h")),
        // The agent was configured with another URL meanwhile.
        (at(http, "2", "http://h"), at(http, "4", "http://other")),
        (at(file, "2", "/m/b.yaml"), at(file, "4", "/m/b.yaml")),
        // What runs is the same document as in the other file.
        (at(file, "1", "/m/b.yaml"), at(file, "4", "/m/b.yaml")),
    ] {
        for running in [None, Some(used.uid.clone())] {
            let sources = [source(Knowledge::Complete, vec![old.clone(), edited.clone()])];
            let desired = merge(&sources, &|_| Some(&used.origin), &|_| running.clone());
            assert_eq!(desired.pods.values().collect::<Vec<_>>(), [&edited], "{running:?}");
        }
    }
}

#[test]
fn of_two_pods_in_the_manifest_in_use_the_running_one_stays() {
    let first = pod("web", "3", "/m/a.yaml");
    let mut second = DesiredPod::clone(&pod("web", "2", "/m/a.yaml"));
    second.origin.document = 1;
    let used = Origin { document: 0, ..second.origin.clone() };
    let sources = [source(Knowledge::Complete, vec![first, Arc::new(second)])];
    let desired = merge(&sources, &|_| Some(&used), &|_| Some(PodUid::from("2")));
    assert_eq!(kept(&desired), [("default/web".to_owned(), "2", "/m/a.yaml")]);
}

#[test]
fn the_same_document_in_two_files_is_one_pod_and_a_verdict() {
    let pods = vec![pod("web", "1", "/m/b.yaml"), pod("web", "1", "/m/a.yaml")];
    let desired =
        merge(&[source(Knowledge::Complete, pods)], &|_| None, &|_| Some(PodUid::from("1")));
    assert_eq!(kept(&desired), [("default/web".to_owned(), "1", "/m/a.yaml")]);
    assert_eq!(desired.duplicates.len(), 1);
}

#[test]
fn a_uid_used_for_two_names_is_given_to_the_one_that_runs() {
    let pods = vec![pod("api", "1", "/m/a.yaml"), pod("web", "1", "/m/b.yaml")];
    let running = |key: &PodKey| (&*key.name == "web").then(|| PodUid::from("1"));
    let desired = merge(&[source(Knowledge::Complete, pods)], &|_| None, &running);
    assert_eq!(kept(&desired), [("default/web".to_owned(), "1", "/m/b.yaml")]);
    assert!(
        desired.duplicates[0].message.starts_with("pod \"default/api\" has the same metadata.uid")
    );
}

#[test]
fn a_pod_is_unconfirmed_when_its_source_says_so() {
    let of = |location, unconfirmed: &[&str]| {
        let mut source = SourceSnapshot::clone(&source(
            Knowledge::Complete,
            vec![pod("web", location, location), pod(location, location, location)],
        ));
        source.unconfirmed = unconfirmed.iter().map(|name| PodKey::new("default", name)).collect();
        Arc::new(source)
    };
    let unconfirmed = |first: &[&str], second: &[&str]| {
        let desired = merge(&[of("a", first), of("b", second)], &|_| None, &|_| None);
        let keys = desired.unconfirmed.into_iter().map(|key| key.name.to_string());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(unconfirmed(&[], &[]), [""; 0]);
    assert_eq!(unconfirmed(&["web"], &["b"]), ["b", "web"]);
    assert_eq!(unconfirmed(&[], &["web"]), [""; 0], "that one gives way");
}

#[test]
fn one_incomplete_source_makes_the_whole_incomplete() {
    for (second, told, complete) in [
        (Knowledge::Complete, true, Completeness::All),
        // Without an API server there is nothing to wait for.
        (Knowledge::Checkpoint, true, Completeness::Api),
        (Knowledge::Unknown, false, Completeness::Api),
    ] {
        let sources = [
            source(Knowledge::Complete, vec![pod("web", "1", "/m/a.yaml")]),
            source(second, Vec::new()),
        ];
        let desired = merge(&sources, &|_| None, &|_| None);
        assert_eq!((desired.complete, desired.pods.len()), (complete, 1), "{second:?}");
        assert_eq!(desired.told, told, "{second:?}");
    }
    let nothing = merge(&[], &|_| None, &|_| None);
    assert!(nothing.told && nothing.complete == Completeness::All);
}

#[test]
fn static_pods_do_not_wait_for_the_api_server() {
    for (files, api, complete) in [
        (Knowledge::Complete, Knowledge::Complete, Completeness::All),
        (Knowledge::Complete, Knowledge::Checkpoint, Completeness::Static),
        (Knowledge::Checkpoint, Knowledge::Complete, Completeness::Api),
        (Knowledge::Checkpoint, Knowledge::Checkpoint, Completeness::None),
    ] {
        let of_api = SourceSnapshot { kind: SourceKind::Api, ..(*source(api, vec![])).clone() };
        let desired = merge(&[source(files, vec![]), Arc::new(of_api)], &|_| None, &|_| None);
        assert_eq!(desired.complete, complete, "{files:?} {api:?}");
    }
}

#[test]
fn the_end_of_a_pod_that_gives_way_is_not_taken_over() {
    let mut of_api =
        (*source(Knowledge::Complete, vec![pod("a", "1", "api"), pod("b", "2", "api")])).clone();
    of_api.kind = SourceKind::Api;
    let end = PodEnd { deleted: Some(3), phase: None };
    of_api.ends = [("a", end), ("b", end)].map(|(n, e)| (PodKey::new("default", n), e)).into();
    let files = source(Knowledge::Complete, vec![pod("a", "3", "/m/a.yaml")]);
    let desired = merge(&[files, Arc::new(of_api)], &|_| None, &|_| None);
    assert_eq!(desired.ends, [(PodKey::new("default", "b"), end)].into());
    assert_eq!(desired.pods[&PodKey::new("default", "a")].uid.as_str(), "3");
}
