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
