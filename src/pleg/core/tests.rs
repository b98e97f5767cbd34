use super::*;
use crate::model::{
    ContainerState, NetworkMode, ObservedContainer, ObservedSandbox, PodUid, SandboxId,
};
use jiff::Timestamp;
use proptest::prelude::*;
use std::collections::VecDeque;

const SECOND: Duration = Duration::from_secs(1);

fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

fn sandbox(id: &str, state: SandboxState) -> ObservedSandbox {
    ObservedSandbox {
        id: SandboxId::from(id),
        uid: PodUid::from("u"),
        attempt: 0,
        state,
        created_at: Timestamp::UNIX_EPOCH,
        ips: Vec::new(),
        network: NetworkMode::Pod,
        owner: None,
    }
}

fn running() -> ContainerState {
    ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }
}

fn exited(code: i32) -> ContainerState {
    ContainerState::Exited {
        started_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
        exit_code: code,
        reason: "".into(),
        message: "".into(),
    }
}

/// A listing of pods that each have a ready sandbox `<name>-s` and a container `<name>-c`.
fn listing(at: u64, pods: &[(&str, ContainerState)]) -> Listing {
    let mut listing = Listing { began: SECOND * u32::try_from(at).unwrap(), ..Default::default() };
    for (name, state) in pods {
        let id = format!("{name}-s");
        listing.sandboxes.push((key(name), sandbox(&id, SandboxState::Ready)));
        let id = format!("{name}-c");
        listing.containers.push((key(name), ObservedContainer::example(&id, state.clone())));
    }
    listing
}

/// Completes a subject as a runtime would.
fn complete(subject: Subject) -> Found {
    Found::Complete(match subject {
        Subject::Sandbox(mut sandbox) => {
            sandbox.ips = vec!["10.0.0.1".parse().unwrap()];
            Subject::Sandbox(sandbox)
        }
        Subject::Container(mut container) => {
            container.log_path = "/log".into();
            if let ContainerState::Exited { exit_code, .. } = &mut container.state {
                *exit_code = 42;
            }
            Subject::Container(container)
        }
    })
}

fn answer_all(picture: &mut RuntimeSnapshot, inspections: Vec<Inspection>) {
    let mut queue = VecDeque::from(inspections);
    while let Some((key, subject)) = queue.pop_front() {
        let object = subject.object();
        queue.extend(picture.inspected(&key, &object, complete(subject)));
    }
}

/// A picture after a first listing of `pods`, taken out.
fn seen(pods: &[(&str, ContainerState)]) -> RuntimeSnapshot {
    let mut picture = RuntimeSnapshot::default();
    let inspections = picture.apply(listing(1, pods), &Scope::All, &BTreeSet::new());
    let news = picture.take_news().unwrap();
    assert!(news.complete && news.listed.len() == pods.len());
    answer_all(&mut picture, inspections);
    let inspected = picture.take_news().map_or(0, |news| news.pods.len());
    assert_eq!(inspected, pods.len());
    picture
}

fn asked(name: &str) -> BTreeSet<PodKey> {
    BTreeSet::from([key(name)])
}

#[test]
fn the_first_news_is_of_everything() {
    let mut picture = RuntimeSnapshot::default();
    let pods = [("a", running()), ("b", exited(0))];
    let inspections = picture.apply(listing(1, &pods), &Scope::All, &BTreeSet::new());
    assert_eq!(inspections.len(), 4);
    let news = picture.take_news().unwrap();
    assert!(news.complete && news.pods.is_empty());
    let names: Vec<_> = news.listed.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!((news.listed_at, names), (SECOND, vec![key("a"), key("b")]));
    let pod = &news.listed[0].1;
    assert_eq!((pod.listed_at, pod.sandboxes[0].uid.as_str()), (SECOND, "u"));
    assert_eq!(pod.sandboxes[0].ips.len(), 0, "not inspected yet");
    assert_eq!(picture.take_news(), None, "given out twice");
}

#[test]
fn each_listed_pod_is_given_out_once_it_is_inspected() {
    let mut picture = RuntimeSnapshot::default();
    let pods = [("a", running()), ("b", exited(0))];
    let inspections = picture.apply(listing(1, &pods), &Scope::All, &BTreeSet::new());
    picture.take_news().unwrap();
    let (of_b, of_a): (Vec<_>, Vec<_>) =
        inspections.into_iter().partition(|(name, _)| *name == key("b"));
    answer_all(&mut picture, of_b);
    let news = picture.take_news().unwrap();
    assert_eq!((news.complete, news.pods.len(), news.listed.len()), (false, 1, 0));
    let (name, pod) = &news.pods[0];
    assert_eq!((name, pod.listed_at, pod.sandboxes[0].ips.len()), (&key("b"), SECOND, 1));
    assert!(matches!(pod.containers[0].state, ContainerState::Exited { exit_code: 42, .. }));
    answer_all(&mut picture, of_a);
    let news = picture.take_news().unwrap();
    assert_eq!((news.complete, news.listed_at, news.pods.len()), (true, SECOND, 1));
}

#[test]
fn a_listed_pod_that_is_gone_by_now_is_given_out_empty() {
    let mut picture = RuntimeSnapshot::default();
    let inspections = picture.apply(listing(1, &[("a", running())]), &Scope::All, &BTreeSet::new());
    picture.take_news().unwrap();
    for (name, subject) in inspections {
        picture.inspected(&name, &subject.object(), Found::Gone);
    }
    let news = picture.take_news().unwrap();
    assert!(news.pods[0].1.is_empty());
}

#[test]
fn an_empty_runtime_is_news_too() {
    let mut picture = RuntimeSnapshot::default();
    picture.apply(listing(1, &[]), &Scope::All, &BTreeSet::new());
    let news = picture.take_news().unwrap();
    assert!(news.complete && news.pods.is_empty() && news.listed.is_empty());
    assert!(!picture.has_news());
}

#[test]
fn nothing_is_inspected_when_nothing_changed() {
    let pods = [("a", running()), ("b", exited(0))];
    let mut picture = seen(&pods);
    assert!(picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new()).is_empty());
    let news = picture.take_news().unwrap();
    assert_eq!((news.listed_at, news.complete, news.pods.len()), (SECOND * 2, true, 0));
    assert!(!picture.has_news());
}

#[test]
fn only_what_changed_is_inspected() {
    let mut picture = seen(&[("a", running()), ("b", running())]);
    let pods = [("a", running()), ("b", exited(0))];
    let inspections = picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new());
    assert_eq!(inspections.len(), 1);
    assert!(matches!(&inspections[0].1, Subject::Container(c) if c.id.as_str() == "b-c"));
    answer_all(&mut picture, inspections);
    let news = picture.take_news().unwrap();
    assert_eq!(news.pods.len(), 1);
    let pod = &news.pods[0].1;
    assert_eq!(pod.sandboxes[0].ips.len(), 1, "the sandbox as inspected before");
}

#[test]
fn who_asks_is_answered_though_nothing_changed() {
    let mut picture = seen(&[("a", running())]);
    let inspections = picture.apply(listing(2, &[("a", running())]), &Scope::Asked, &asked("a"));
    assert!(inspections.is_empty());
    let news = picture.take_news().unwrap();
    assert!(!news.complete);
    assert_eq!(news.pods[0].1.listed_at, SECOND * 2);
    picture.apply(listing(3, &[]), &Scope::Asked, &asked("never-seen"));
    let news = picture.take_news().unwrap();
    assert!(news.pods[0].1.is_empty());
    assert_eq!(news.pods[0].1.listed_at, SECOND * 3);
}

#[test]
fn a_look_at_one_pod_leaves_the_others_alone() {
    let mut picture = seen(&[("a", running()), ("b", running())]);
    picture.apply(listing(2, &[]), &Scope::Asked, &asked("a"));
    let news = picture.take_news().unwrap();
    assert_eq!(news.pods, vec![(key("a"), news.pods[0].1.clone())]);
    assert!(news.pods[0].1.is_empty());
    assert!(picture.find("b-c").is_some() && picture.find("a-c").is_none());
}

#[test]
fn a_pod_that_is_gone_is_given_out_empty_once() {
    let mut picture = seen(&[("a", running())]);
    picture.apply(listing(2, &[]), &Scope::All, &BTreeSet::new());
    assert!(picture.take_news().unwrap().pods[0].1.is_empty());
    picture.apply(listing(3, &[]), &Scope::All, &BTreeSet::new());
    assert!(picture.take_news().unwrap().pods.is_empty());
}

#[test]
fn a_hanging_inspection_marks_its_pod_and_nobody_else_waits() {
    let mut picture = seen(&[("a", running()), ("b", running())]);
    let pods = [("a", exited(0)), ("b", exited(0))];
    let mut inspections = picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new());
    let (hangs, subject) = inspections.remove(0);
    assert_eq!(hangs, key("a"));
    answer_all(&mut picture, inspections);
    let news = picture.take_news().unwrap();
    assert!(!news.complete);
    assert_eq!(news.pods[0].0, key("b"));

    picture.overdue(&hangs, &subject.object());
    let news = picture.take_news().unwrap();
    assert!(news.complete);
    let pod = &news.pods[0].1;
    assert_eq!(pod.inspect_error.as_deref(), Some("ContainerStatus of a-c does not answer"));
    assert!(pod.containers[0].state.is_running(), "as last seen");
    assert_eq!(picture.hung().len(), 1);

    // It is not asked again, and who asks is answered with the same.
    assert!(picture.apply(listing(3, &pods), &Scope::All, &asked("a")).is_empty());
    let news = picture.take_news().unwrap();
    assert!(news.complete && news.pods[0].1.inspect_error.is_some());
    assert_eq!(news.pods[0].1.listed_at, SECOND * 3);

    // The answer comes at last; the listing that came meanwhile needs no inspection any more.
    assert!(picture.inspected(&hangs, &subject.object(), complete(subject)).is_empty());
    let news = picture.take_news().unwrap();
    let pod = &news.pods[0].1;
    assert_eq!((pod.inspect_error.as_deref(), pod.listed_at), (None, SECOND * 3));
    assert!(matches!(pod.containers[0].state, ContainerState::Exited { exit_code: 42, .. }));
    assert!(picture.hung().is_empty());
}

#[test]
fn a_container_runs_whose_inspection_hangs_after_its_start() {
    let mut picture = seen(&[("a", ContainerState::Created)]);
    let pods = [("a", running())];
    let (hangs, subject) =
        picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new()).remove(0);
    picture.overdue(&hangs, &subject.object());
    let pod = &picture.take_news().unwrap().pods[0].1;
    assert!(pod.inspect_error.is_some());
    assert!(pod.containers[0].state.is_running(), "as listed: {:?}", pod.containers[0].state);
}

#[test]
fn what_is_removed_while_its_inspection_hangs_is_gone() {
    let mut picture = seen(&[("a", running())]);
    let pods = [("a", exited(0))];
    let (hangs, subject) =
        picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new()).remove(0);
    picture.overdue(&hangs, &subject.object());
    assert_eq!(picture.take_news().unwrap().pods[0].1.containers.len(), 1);
    picture.apply(listing(3, &[]), &Scope::Asked, &asked("a"));
    let news = picture.take_news().unwrap();
    let pod = &news.pods[0].1;
    assert_eq!((pod.containers.len(), pod.sandboxes.len(), pod.listed_at), (0, 0, SECOND * 3));
}

#[test]
fn what_is_made_while_an_inspection_hangs_is_there() {
    let mut picture = seen(&[("a", running())]);
    let pods = [("a", exited(0))];
    let (hangs, subject) =
        picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new()).remove(0);
    picture.overdue(&hangs, &subject.object());
    picture.take_news().unwrap();
    let mut newer = listing(3, &pods);
    newer.sandboxes.push((key("a"), sandbox("a-s2", SandboxState::Ready)));
    newer.containers.push((key("a"), ObservedContainer::example("a-c2", running())));
    // No listing tells how it has ended.
    newer.containers.push((key("a"), ObservedContainer::example("a-c3", exited(0))));
    picture.apply(newer, &Scope::Asked, &asked("a"));
    let news = picture.take_news().unwrap();
    let pod = &news.pods[0].1;
    assert_eq!((pod.containers.len(), pod.sandboxes.len(), pod.listed_at), (2, 2, SECOND * 3));
    assert!(pod.inspect_error.is_some());
    let first = pod.containers.iter().find(|one| one.id.as_str() == "a-c").unwrap();
    assert!(first.state.is_running(), "as last seen");
    // They are inspected when that is possible.
    let next = picture.inspected(&hangs, &subject.object(), complete(subject));
    let objects: Vec<String> = next.iter().map(|(_, subject)| subject.object().call()).collect();
    assert_eq!(objects.len(), 3, "{objects:?}");
    answer_all(&mut picture, next);
    let news = picture.take_news().unwrap();
    let pod = &news.pods[0].1;
    assert!(pod.inspect_error.is_none() && pod.containers.len() == 3, "{pod:?}");
    assert!(pod.containers.iter().all(|one| &*one.log_path == "/log"), "{pod:?}");
}

#[test]
fn what_starts_while_another_inspection_hangs_runs() {
    let mut first = listing(1, &[("a", running())]);
    first.containers.push((key("a"), ObservedContainer::example("a-c2", ContainerState::Created)));
    let mut picture = RuntimeSnapshot::default();
    let mut inspections = picture.apply(first.clone(), &Scope::All, &BTreeSet::new());
    let (hangs, subject) = inspections.remove(0);
    picture.overdue(&hangs, &subject.object());
    answer_all(&mut picture, inspections);
    picture.take_news();
    first.began = SECOND * 2;
    first.containers[1].1.state = running();
    picture.apply(first, &Scope::Asked, &asked("a"));
    let news = picture.take_news().unwrap();
    let pod = &news.pods[0].1;
    assert!(pod.containers.iter().all(|one| one.state.is_running()), "{:?}", pod.containers);
}

#[test]
fn a_failed_inspection_is_made_again() {
    let mut picture = seen(&[("a", running())]);
    let pods = [("a", exited(0))];
    let mut inspections = picture.apply(listing(2, &pods), &Scope::All, &BTreeSet::new());
    let (pod, subject) = inspections.remove(0);
    picture.inspected(&pod, &subject.object(), Found::Failed("no".to_owned()));
    let news = picture.take_news().unwrap();
    assert_eq!(news.pods[0].1.inspect_error.as_deref(), Some("no"));
    assert!(news.pods[0].1.containers[0].state.is_running(), "as last seen");
    assert!(picture.has_suspects());

    let inspections = picture.apply(listing(3, &pods), &Scope::All, &BTreeSet::new());
    assert_eq!(inspections.len(), 1);
    answer_all(&mut picture, inspections);
    let news = picture.take_news().unwrap();
    assert_eq!(news.pods[0].1.inspect_error, None);
    assert!(!picture.has_suspects());
}

#[test]
fn what_vanishes_before_its_inspection_is_gone() {
    let mut picture = seen(&[]);
    let mut inspections =
        picture.apply(listing(2, &[("a", running())]), &Scope::All, &BTreeSet::new());
    for (pod, subject) in inspections.drain(..) {
        picture.inspected(&pod, &subject.object(), Found::Gone);
    }
    assert!(picture.take_news().unwrap().pods.is_empty());
    assert!(picture.find("a-c").is_none());
}

#[test]
fn a_suspect_is_inspected_though_unchanged() {
    let pods = [("a", exited(0))];
    let mut picture = seen(&pods);
    picture.suspect(&key("a"), "a-c");
    let inspections = picture.apply(listing(2, &pods), &Scope::Asked, &asked("a"));
    assert_eq!(inspections.len(), 1);
}

/// The container of a pod of [`listing`], ended and inspected.
fn ended(name: &str) -> ObservedContainer {
    let container = ObservedContainer::example(&format!("{name}-c"), exited(0));
    let found = complete(Subject::Container(Box::new(container)));
    let Found::Complete(Subject::Container(container)) = found else { panic!("{found:?}") };
    *container
}

#[test]
fn an_ended_container_is_given_out_with_the_last_listing() {
    let pods = [("a", running()), ("b", running())];
    let mut picture = seen(&pods);
    picture.apply(listing(2, &pods), &Scope::Asked, &asked("a"));
    picture.take_news().unwrap();
    picture.ended(&key("a"), ended("a"));
    let news = picture.take_news().unwrap();
    let (name, pod) = &news.pods[0];
    assert_eq!((news.complete, news.pods.len(), name), (false, 1, &key("a")));
    assert_eq!((pod.listed_at, pod.sandboxes[0].ips.len()), (SECOND * 2, 1));
    assert_eq!(pod.containers[0], ended("a"));
    picture.ended(&key("a"), ended("a"));
    assert!(!picture.has_news(), "seen to end before");

    let pods = [("a", exited(0)), ("b", running())];
    let inspections = picture.apply(listing(3, &pods), &Scope::Asked, &asked("a"));
    assert!(inspections.is_empty(), "inspected once more: {inspections:?}");
    assert_eq!(picture.take_news().unwrap().pods[0].1.listed_at, SECOND * 3);
}

#[test]
fn an_exit_code_is_given_out_before_the_runtime_shows_the_end() {
    let pods = [("a", running()), ("b", running())];
    let mut picture = seen(&pods);
    picture.told_end(&key("a"), "a-c", 3);
    let news = picture.take_news().unwrap();
    let told = |pods: &[(PodKey, Arc<ObservedPod>)]| {
        let container = &pods[0].1.containers[0];
        (container.state.is_running(), container.ended_with)
    };
    assert_eq!((news.complete, news.pods.len(), told(&news.pods)), (false, 1, (true, Some(3))));

    // It holds over listings and inspections that are behind the event.
    picture.suspect(&key("a"), "a-c");
    for (pod, subject) in picture.apply(listing(2, &pods), &Scope::Asked, &asked("a")) {
        picture.told_end(&pod, "a-c", 4);
        let object = subject.object();
        picture.inspected(&pod, &object, Found::Complete(subject));
    }
    assert_eq!(told(&picture.take_news().unwrap().pods), (true, Some(3)));
    picture.apply(listing(3, &pods), &Scope::Asked, &asked("a"));
    assert_eq!(told(&picture.take_news().unwrap().pods), (true, Some(3)));

    picture.ended(&key("a"), ended("a"));
    assert_eq!(picture.take_news().unwrap().pods[0].1.containers[0], ended("a"));
    picture.told_end(&key("a"), "a-c", 3);
    picture.told_end(&key("never-seen"), "never-seen-c", 3);
    assert!(!picture.has_news(), "seen to end before");
}

#[test]
fn an_end_waits_for_a_pod_that_is_being_inspected() {
    let mut picture = seen(&[("a", running())]);
    picture.suspect(&key("a"), "a-c");
    let inspections = picture.apply(listing(2, &[("a", running())]), &Scope::Asked, &asked("a"));
    picture.ended(&key("a"), ended("a"));
    picture.ended(&key("never-seen"), ended("never-seen"));
    assert!(!picture.has_news());
    for (name, subject) in inspections {
        picture.inspected(&name, &subject.object(), Found::Failed("no".to_owned()));
    }
    picture.take_news().unwrap();
    picture.ended(&key("a"), ended("a"));
    assert!(!picture.has_news(), "the next listing inspects it again");
}

#[test]
fn a_ready_sandbox_without_an_address_is_looked_at_again() {
    let mut picture = RuntimeSnapshot::default();
    let inspections = picture.apply(listing(1, &[("a", running())]), &Scope::All, &BTreeSet::new());
    for (pod, subject) in inspections {
        let object = subject.object();
        picture.inspected(&pod, &object, Found::Complete(subject));
    }
    picture.take_news().unwrap();
    let inspections = picture.apply(listing(2, &[("a", running())]), &Scope::All, &BTreeSet::new());
    assert!(matches!(&inspections[..], [(_, Subject::Sandbox(_))]));
}

#[test]
fn the_newest_comes_first_whatever_the_clock_said() {
    let mut picture = RuntimeSnapshot::default();
    let mut list = Listing { began: SECOND, ..Default::default() };
    for (id, attempt, created) in [("old", 1, 900), ("new", 2, 100)] {
        let mut one = sandbox(id, SandboxState::NotReady);
        one.attempt = attempt;
        one.created_at = Timestamp::from_second(created).unwrap();
        list.sandboxes.push((key("a"), one));
        let mut one = ObservedContainer::example(id, exited(0));
        one.restart_count = attempt;
        one.created_at = Timestamp::from_second(created).unwrap();
        list.containers.push((key("a"), one));
    }
    let inspections = picture.apply(list, &Scope::All, &BTreeSet::new());
    answer_all(&mut picture, inspections);
    let pod = picture.take_news().unwrap().pods[0].1.clone();
    assert_eq!(pod.sandboxes[0].id.as_str(), "new");
    assert_eq!(pod.containers[0].id.as_str(), "new");
}

#[derive(Clone, Debug)]
enum Step {
    List(Vec<(u8, bool)>),
    Look(u8, Option<bool>),
    End(u8),
    Answer(usize),
    Fail(usize),
    Overdue(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop::collection::vec((0_u8..4, any::<bool>()), 0..4).prop_map(Step::List),
        (0_u8..4, any::<Option<bool>>()).prop_map(|(n, s)| Step::Look(n, s)),
        (0_u8..4).prop_map(Step::End),
        any::<usize>().prop_map(Step::Answer),
        any::<usize>().prop_map(Step::Answer),
        any::<usize>().prop_map(Step::Fail),
        any::<usize>().prop_map(Step::Overdue),
    ];
    prop::collection::vec(step, 1..60)
}

fn state(running_: bool) -> ContainerState {
    if running_ { running() } else { exited(0) }
}

proptest! {
    /// However listings, answers, failures and hanging mix: listings are given out in their order,
    /// no object is inspected twice at once, and once everything is answered and listed once more,
    /// what was given out last is what runs.
    #[test]
    fn what_is_given_out_is_what_runs(steps in steps()) {
        let mut picture = RuntimeSnapshot::default();
        let mut under_way: Vec<Inspection> = Vec::new();
        let mut world: BTreeMap<u8, bool> = BTreeMap::new();
        let mut given: BTreeMap<PodKey, Arc<ObservedPod>> = BTreeMap::new();
        let mut listed: BTreeSet<PodKey> = BTreeSet::new();
        let (mut at, mut complete_at) = (0, Duration::ZERO);
        let mut first = true;
        let name = |n: u8| format!("p{n}");
        let listing_of = |at: u64, world: &BTreeMap<u8, bool>, only: Option<u8>| {
            let names: Vec<(String, ContainerState)> = world
                .iter()
                .filter(|(n, _)| only.is_none_or(|only| only == **n))
                .map(|(n, s)| (name(*n), state(*s)))
                .collect();
            let pods: Vec<(&str, ContainerState)> =
                names.iter().map(|(n, s)| (n.as_str(), s.clone())).collect();
            listing(at, &pods)
        };
        let mut queue = VecDeque::from(steps);
        let mut last = 0;
        while let Some(step) = queue.pop_front() {
            at += 1;
            match step {
                Step::List(pods) => {
                    world = pods.into_iter().collect();
                    let list = listing_of(at, &world, None);
                    under_way.extend(picture.apply(list, &Scope::All, &BTreeSet::new()));
                }
                Step::Look(n, now) => {
                    match now {
                        Some(s) => world.insert(n, s),
                        None => world.remove(&n),
                    };
                    let list = listing_of(at, &world, Some(n));
                    under_way.extend(picture.apply(list, &Scope::Asked, &asked(&name(n))));
                }
                Step::End(n) => {
                    if let Some(runs) = world.get_mut(&n) {
                        *runs = false;
                        picture.ended(&key(&name(n)), ended(&name(n)));
                    }
                }
                Step::Answer(i) if !under_way.is_empty() => {
                    let (pod, subject) = under_way.remove(i % under_way.len());
                    let object = subject.object();
                    under_way.extend(picture.inspected(&pod, &object, complete(subject)));
                }
                Step::Fail(i) if !under_way.is_empty() => {
                    let (pod, subject) = under_way.remove(i % under_way.len());
                    let found = Found::Failed("no".to_owned());
                    under_way.extend(picture.inspected(&pod, &subject.object(), found));
                }
                Step::Overdue(i) if !under_way.is_empty() => {
                    let (pod, subject) = &under_way[i % under_way.len()];
                    picture.overdue(pod, &subject.object());
                }
                Step::Answer(_) | Step::Fail(_) | Step::Overdue(_) => {}
            }
            let mut objects: Vec<Object> = under_way.iter().map(|(_, s)| s.object()).collect();
            objects.sort();
            objects.dedup();
            prop_assert_eq!(objects.len(), under_way.len());
            while let Some(news) = picture.take_news() {
                prop_assert!(first || news.listed.is_empty());
                listed.extend(news.listed.into_iter().map(|(pod, _)| pod));
                if news.complete {
                    prop_assert!(news.listed_at >= complete_at);
                    complete_at = news.listed_at;
                    first = false;
                }
                prop_assert!(!first, "something was given out before everything");
                for (pod, observed) in news.pods {
                    listed.remove(&pod);
                    if let Some(before) = given.get(&pod) {
                        prop_assert!(observed.listed_at >= before.listed_at);
                    }
                    given.insert(pod, observed);
                }
            }
            // In the end: list once more and answer everything, twice, since a failure before the
            // last listing is found out by it.
            if queue.is_empty() && last < 2 {
                last += 1;
                let pods = world.iter().map(|(n, s)| (*n, *s)).collect();
                queue.push_back(Step::List(pods));
                let open = under_way.len() + 2 * world.len() + 8;
                queue.extend((0..open).map(|_| Step::Answer(0)));
            }
        }
        prop_assert!(listed.is_empty(), "listed, and never given out: {listed:?}");
        for n in 0..4 {
            let shown = given.get(&key(&name(n)));
            match world.get(&n) {
                None => prop_assert!(shown.is_none_or(|pod| pod.is_empty())),
                Some(running) => {
                    let pod = shown.unwrap();
                    prop_assert_eq!(&pod.inspect_error, &None);
                    prop_assert_eq!(pod.containers[0].state.is_running(), *running);
                    prop_assert_eq!(&*pod.containers[0].log_path, "/log");
                    prop_assert_eq!(pod.sandboxes[0].ips.len(), 1);
                }
            }
        }
    }
}
