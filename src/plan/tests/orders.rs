//! Which orders end an incarnation.

use super::world::{container, desired, from_api};
use crate::{
    model::{Hold, HoldStop, PodEnd, Shutdown, ShutdownPeriods},
    plan::{HeldPod, PodOrders, Wish},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

fn orders(wish: Wish) -> PodOrders {
    PodOrders {
        wish,
        shutdown: None,
        hold: None,
        waits: None,
        after: None,
        resize_wait: None,
        asked: None,
        clear_dead: false,
    }
}

fn held(uid: &str) -> Option<HeldPod> {
    let hold = Hold {
        reason: "Evicted".to_owned(),
        message: "The node was low on resource: memory. ".to_owned(),
        stop: HoldStop::Within(7),
        disruption: None,
    };
    Some(HeldPod { uid: uid.into(), hold: Arc::new(hold) })
}

fn shutdown(turn: usize) -> Option<Shutdown> {
    let periods = ShutdownPeriods::of_total(Duration::from_secs(30), Duration::from_secs(10));
    Some(Shutdown { periods, turn })
}

#[test]
fn a_pod_has_the_shortest_period_that_an_order_gives_it() {
    let spec = |grace| {
        let containers = json!([container("web")]);
        json!({"containers": containers, "terminationGracePeriodSeconds": grace})
    };
    let pod = |uid, grace| Arc::new(from_api(desired(uid, &spec(grace))));
    let end = |seconds| PodEnd { deleted: seconds, phase: None };
    let ended = |seconds| orders(Wish::End { pod: pod("a", 60), end: end(seconds) });
    let run = || orders(Wish::Run(pod("a", 60)));
    for (what, grace, orders, seconds) in [
        ("it runs", 60, run(), None),
        ("its name is not wished", 60, orders(Wish::Gone), None),
        ("it is deleted", 60, ended(Some(90)), Some(90)),
        ("it is held", 60, PodOrders { hold: held("a"), ..run() }, Some(7)),
        ("it is held for longer than it has", 5, PodOrders { hold: held("a"), ..run() }, Some(5)),
        ("another uid is held", 60, PodOrders { hold: held("b"), ..run() }, None),
        ("its turn in a shutdown", 60, PodOrders { shutdown: shutdown(0), ..run() }, Some(20)),
        (
            "it is removed in a shutdown",
            60,
            PodOrders { shutdown: shutdown(0), ..orders(Wish::Gone) },
            Some(20),
        ),
        (
            "it is deleted in a shutdown",
            60,
            PodOrders { shutdown: shutdown(0), ..ended(Some(3)) },
            Some(3),
        ),
        ("it is deleted by force, and a finalizer holds it", 60, ended(Some(0)), Some(1)),
        (
            "another uid is deleted",
            60,
            orders(Wish::End { pod: pod("b", 60), end: end(Some(3)) }),
            None,
        ),
    ] {
        let found = orders.stop_seconds(&"a".into(), Some(&pod("a", grace).pod));
        assert_eq!(found, seconds, "{what}");
    }
}

#[test]
fn a_pod_ends_when_it_is_deleted_replaced_held_or_shut_down() {
    let spec = json!({"containers": [container("web")], "priority": 2_000_000_000});
    let pod = |uid| Arc::new(from_api(desired(uid, &spec)));
    let deleted = PodEnd { deleted: Some(3), phase: None };
    let run = || orders(Wish::Run(pod("a")));
    let keep = |uid| orders(Wish::Keep { pod: pod(uid), why: "kept" });
    for (what, orders, ends) in [
        ("it runs", run(), false),
        ("another uid is wished", orders(Wish::Run(pod("b"))), true),
        ("it is deleted", orders(Wish::End { pod: pod("a"), end: deleted }), true),
        ("its name is not wished", orders(Wish::Gone), true),
        ("nothing is known yet", orders(Wish::Undecided), false),
        ("it is kept", keep("a"), false),
        ("another uid is kept", keep("b"), false),
        ("it is held", PodOrders { hold: held("a"), ..run() }, true),
        ("it is kept and held", PodOrders { hold: held("a"), ..keep("a") }, true),
        ("another uid is held", PodOrders { hold: held("b"), ..run() }, false),
        ("others are shut down first", PodOrders { shutdown: shutdown(0), ..run() }, false),
        (
            "nothing is known in a shutdown",
            PodOrders { shutdown: shutdown(0), ..orders(Wish::Undecided) },
            true,
        ),
        (
            "another uid is kept in a shutdown",
            PodOrders { shutdown: shutdown(0), ..keep("b") },
            true,
        ),
        ("its turn in a shutdown", PodOrders { shutdown: shutdown(1), ..run() }, true),
    ] {
        assert_eq!(orders.ends(&"a".into()), ends, "{what}");
    }
}
