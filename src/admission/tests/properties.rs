//! What holds for any node and any pods.

use super::*;
use crate::admission::resources::{Needs, Resource};
use proptest::{prelude::*, sample::select};

/// A pod of a generated node.
#[derive(Clone, Debug)]
struct Made {
    priority: i32,
    cpu: i64,
    memory: i64,
    guaranteed: bool,
    port: i32,
    standing: Standing,
    evicted: bool,
}

fn made() -> impl Strategy<Value = Made> {
    let standing = prop_oneof![
        3 => Just(Standing::Running),
        4 => prop::option::of(0_u64..4).prop_map(|since| Standing::New { since: since.map(Duration::from_secs) }),
        1 => Just(Standing::Ended),
    ];
    (
        select(vec![-5, 0, 0, 7, 1000, CRITICAL - 1, CRITICAL, CRITICAL + 1000]),
        select(vec![0, 0, 100, 300, 700, 1500]),
        select(vec![0, 0, 1, 2, 5]),
        any::<bool>(),
        select(vec![0, 0, 0, 80, 81]),
        standing,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(priority, cpu, memory, guaranteed, port, standing, evicted)| Made {
            priority,
            cpu,
            memory,
            guaranteed,
            port,
            standing,
            evicted,
        })
}

fn build(name: &str, made: &Made) -> Arc<DesiredPod> {
    let amounts = json!({"cpu": format!("{}m", made.cpu), "memory": format!("{}Gi", made.memory)});
    let mut resources = json!({"requests": amounts});
    if made.guaranteed {
        resources["limits"] = amounts;
    }
    let mut container = json!({"name": "c", "image": "i", "resources": resources});
    if made.port != 0 {
        container["ports"] = json!([{"containerPort": 80, "hostPort": made.port}]);
    }
    pod(name, json!({"priority": made.priority, "containers": [container]}))
}

fn any_node() -> impl Strategy<Value = Node> {
    let conditions = prop_oneof![
        6 => Just(vec![]),
        1 => Just(vec![Pressure::Memory]),
        1 => Just(vec![Pressure::Disk]),
    ];
    let pods = prop::collection::vec(made(), 0..10);
    let leaving = prop::collection::vec((made(), prop::option::of(0_usize..10)), 0..2);
    (0_i64..4000, 0_i64..12, 0_i64..8, pods, leaving, conditions).prop_map(
        |(cpu_milli, memory, places, pods, leaving, conditions)| {
            let mut node = node().short_of(&conditions);
            let hugepages = BTreeMap::new();
            node.facts.allocatable = Allocatable {
                cpu_milli,
                memory_bytes: memory * GI,
                ephemeral_storage_bytes: None,
                hugepages,
                pods: places,
            };
            for (index, made) in pods.iter().enumerate() {
                let pod = build(&format!("p{index}"), made);
                if made.evicted {
                    evicted(&mut node, &pod, pod.uid.as_str());
                }
                node = node.with(made.standing, [pod]);
            }
            for (index, (made, follower)) in leaving.iter().enumerate() {
                // Some are followed by a pod of the same name, which then does not run yet.
                let name = follower.map_or(format!("gone{index}"), |at| format!("p{at}"));
                let runs =
                    |s: &Subject| *s.pod.key.name == *name && s.standing == Standing::Running;
                if !node.pods.iter().any(runs) {
                    node = node.leaves(&build(&name, made));
                }
            }
            node
        },
    )
}

fn sum<'a>(pods: impl Iterator<Item = &'a k8s::Pod>) -> Needs {
    pods.map(Needs::of).fold(Needs::default(), |mut sum, needs| {
        sum.add(&needs);
        sum
    })
}

impl Node {
    fn decide(&self) -> Admissions {
        admit(&self.input()).admissions
    }

    fn decision<'a>(admissions: &'a Admissions, subject: &Subject) -> &'a Decision {
        admissions.get(&subject.pod.key, &subject.pod.uid).unwrap()
    }

    /// One thing goes on, as it would on a node: who was admitted begins, or one that has to go is
    /// gone.
    fn moves(&mut self, admissions: &Admissions) -> bool {
        if !self.leaving.is_empty() {
            self.leaving.remove(0);
            return true;
        }
        for subject in &mut self.pods {
            let decision = Self::decision(admissions, subject);
            let next = match (subject.standing, decision) {
                (Standing::New { .. }, Decision::Admitted) => Standing::Running,
                (Standing::Running, Decision::Held(_)) => waiting(9),
                _ => continue,
            };
            subject.standing = next;
            return true;
        }
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_the_input_does_not_matter(node in any_node(), by in 0_usize..10) {
        let mut other = node;
        let expected = admit(&other.input());
        other.pods.reverse();
        other.leaving.reverse();
        prop_assert_eq!(&admit(&other.input()), &expected);
        let middle = by.min(other.pods.len());
        other.pods.rotate_left(middle);
        prop_assert_eq!(&admit(&other.input()), &expected);
    }

    #[test]
    fn nothing_changes_while_nothing_happens(mut node in any_node()) {
        // What was taken from some may be of use to others than the one it was taken for: a port of
        // the node.
        while {
            let events;
            Ruling { admissions: node.before, events, .. } = admit(&node.input());
            events.iter().any(|event| event.reason == "Preempting")
        } {}
        let Ruling { admissions: second, events, .. } = admit(&node.input());
        prop_assert_eq!(&second, &node.before);
        prop_assert_eq!(events, vec![]);
    }

    /// What was let in fits beside everything that is there, unless what runs was too much before.
    #[test]
    fn what_is_admitted_fits(node in any_node()) {
        let admissions = node.decide();
        let (mut running, mut new) = (Vec::new(), Vec::new());
        for subject in &node.pods {
            let admitted = *Node::decision(&admissions, subject) == Decision::Admitted;
            match subject.standing {
                Standing::Running => running.push(subject),
                Standing::New { .. } if admitted => new.push(subject),
                Standing::New { .. } | Standing::Ended => {}
            }
        }
        let follows = |gone: &&Leaving| new.iter().any(|s| s.pod.key == gone.key);
        let leaving = node.leaving.iter().filter(|gone| !follows(gone)).map(|gone| &*gone.pod);
        let pods = running.iter().chain(&new).map(|subject| &*subject.pod.pod);
        let all = sum(pods.chain(leaving));
        let added = sum(new.iter().map(|subject| &*subject.pod.pod));
        for shortage in all.shortages(node.input().room(), &Needs::default()) {
            prop_assert_eq!(added.get(&shortage.resource), 0, "{:?}", shortage);
        }
    }

    #[test]
    fn what_runs_gives_way_only_to_critical_pods(node in any_node()) {
        let admissions = node.decide();
        let highest = node.pods.iter().filter(|subject| {
            matches!(Node::decision(&admissions, subject), Decision::Waits(_))
        });
        let highest = highest.map(|subject| priority_of(&subject.pod.pod)).max();
        for subject in node.pods.iter().filter(|s| s.standing == Standing::Running) {
            match Node::decision(&admissions, subject) {
                Decision::Admitted => {}
                Decision::Held(hold) if hold.reason == "Evicted" => {
                    prop_assert!(node.pressure.evicted.contains_key(&subject.pod.key));
                }
                Decision::Held(hold) => {
                    prop_assert_eq!(&hold.reason, "Preempting");
                    let priority = priority_of(&subject.pod.pod);
                    prop_assert!(highest.is_some_and(|by| by >= CRITICAL && by > priority));
                }
                Decision::Waits(_) => prop_assert!(false, "{} runs", subject.pod.key),
            }
        }
    }

    /// One critical pod: no victim could have been spared.
    #[test]
    fn no_victim_could_be_spared(node in any_node()) {
        let critical = |s: &&Subject| priority_of(&s.pod.pod) >= CRITICAL && s.standing != Standing::Ended;
        if node.pods.iter().filter(critical).count() != 1 {
            return Ok(());
        }
        let admissions = node.decide();
        let preempted = |s: &&Subject| {
            matches!(Node::decision(&admissions, s), Decision::Held(hold) if hold.reason == "Preempting")
        };
        let staying = |s: &&Subject| {
            s.standing == Standing::Running && *Node::decision(&admissions, s) == Decision::Admitted
        };
        let critical = node.pods.iter().find(critical).unwrap();
        let needs = Needs::of(&critical.pod.pod);
        let stay = sum(node.pods.iter().filter(staying).map(|s| &*s.pod.pod));
        for victim in node.pods.iter().filter(preempted) {
            let mut used = stay.clone();
            used.add(&Needs::of(&victim.pod.pod));
            prop_assert!(!needs.shortages(node.input().room(), &used).is_empty(), "{}", victim.pod.key);
        }
    }

    /// Who is refused for want of room would not have fitted without those that are less important
    /// either.
    #[test]
    fn the_most_important_are_served_first(node in any_node()) {
        let admissions = node.decide();
        let follows = |s: &Subject| node.leaving.iter().any(|gone| gone.key == s.pod.key);
        let rank = |s: &Subject, since: Option<Duration>| {
            let priority = priority_of(&s.pod.pod);
            let since = since.unwrap_or(Duration::MAX);
            (priority < CRITICAL, priority < CRITICAL && !follows(s), Reverse(priority), since, s.pod.key.clone())
        };
        for refused in &node.pods {
            let Standing::New { since } = refused.standing else { continue };
            let Decision::Held(hold) = Node::decision(&admissions, refused) else { continue };
            let spec = refused.pod.pod.spec.as_ref().unwrap();
            if !hold.reason.starts_with("OutOf") || spec.containers[0].ports.is_some() {
                // A pod may be refused for its port first.
                continue;
            }
            let own = rank(refused, since);
            let before = node.pods.iter().filter(|other| {
                let has_room = !matches!(Node::decision(&admissions, other), Decision::Held(_));
                has_room && match other.standing {
                    Standing::Running => true,
                    Standing::New { since } => rank(other, since) < own,
                    Standing::Ended => false,
                }
            });
            let used = sum(before.map(|s| &*s.pod.pod));
            let short = Needs::of(&refused.pod.pod).shortages(node.input().room(), &used);
            prop_assert!(!short.is_empty(), "{}", refused.pod.key);
        }
    }

    #[test]
    fn with_room_and_without_pressure_everybody_is_admitted(mut node in any_node()) {
        node.before = node.decide();
        node.facts.allocatable.cpu_milli = i64::MAX;
        node.facts.allocatable.memory_bytes = i64::MAX;
        node.facts.allocatable.pods = i64::MAX;
        node.pressure.conditions.clear();
        node.pressure.evicted.clear();
        node.leaving.clear();
        for subject in &mut node.pods {
            if let (Standing::Running, Decision::Held(_)) =
                (subject.standing, Node::decision(&node.before, subject))
            {
                subject.standing = waiting(1);
            }
        }
        let admissions = node.decide();
        for subject in &node.pods {
            match Node::decision(&admissions, subject) {
                Decision::Admitted => {}
                Decision::Held(hold) => prop_assert_eq!(&hold.reason, "NodePorts"),
                Decision::Waits(message) => prop_assert!(false, "{message}"),
            }
        }
    }

    /// As things go on, each pod begins and is stopped a few times at most, and then it is quiet
    /// and nobody waits.
    #[test]
    fn it_comes_to_rest(mut node in any_node()) {
        let mut stopped = 0;
        for _ in 0..200 {
            let admissions = node.decide();
            let running = |node: &Node| node.pods.iter().filter(|s| s.standing == Standing::Running).count();
            let before = running(&node);
            let moved = node.moves(&admissions);
            stopped += usize::from(running(&node) < before);
            node.before = admissions;
            if !moved {
                for subject in &node.pods {
                    let decision = Node::decision(&node.before, subject);
                    prop_assert!(!matches!(decision, Decision::Waits(_)), "{} {decision:?}", subject.pod.key);
                }
                prop_assert!(stopped <= node.pods.len(), "stopped {stopped} times");
                return Ok(());
            }
        }
        prop_assert!(false, "no end of it");
    }

    /// No two pods that were let in have a port of the node twice.
    #[test]
    fn ports_are_given_once(node in any_node()) {
        let admissions = node.decide();
        let mut taken = std::collections::BTreeSet::new();
        let ports = |subject: &Subject| -> Vec<i32> {
            let spec = subject.pod.pod.spec.as_ref().unwrap();
            spec.containers[0].ports.iter().flatten().filter_map(|port| port.host_port).collect()
        };
        for subject in node.pods.iter().filter(|s| s.standing == Standing::Running) {
            taken.extend(ports(subject));
        }
        for subject in &node.pods {
            let admitted = *Node::decision(&admissions, subject) == Decision::Admitted;
            if let (Standing::New { .. }, true) = (subject.standing, admitted) {
                for port in ports(subject) {
                    prop_assert!(taken.insert(port), "{}", subject.pod.key);
                }
            }
        }
    }
}

#[test]
fn a_pods_place_is_one_of_its_needs() {
    assert_eq!(Needs::of(&k8s::Pod::default()).get(&Resource::Pods), 1);
}
