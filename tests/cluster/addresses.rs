//! The addresses of a node: one of each family, and others while the agent runs.

use super::{
    agent::{Member, hasty, ready},
    controlplane::{Options, link::Link},
    support::{
        self,
        manifest::Pod,
        skips::{self, skip_without},
        world::Runtime,
    },
};
use serde_json::{Value, json};

fn addresses(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.map(|one| one["ip"].as_str().unwrap()).collect()
}

/// The Node and its pods show both addresses, the first one of `--node-ip` first, and others once
/// they change.
#[test]
fn a_node_of_two_families_shows_both_addresses() {
    let Some(member) = Member::prepare(&Options::default(), &hasty()) else { return };
    let Runtime::Fake(fake) = &member.world.runtime else { panic!("the fake") };
    fake.add_second_family();
    member.world.agent.add_flag("--node-ip=127.0.0.7,fd00::7".to_owned());
    let member = member.started().shows_web();
    let world = &member.world;
    world.drop_pod(&Pod::running("host").set("hostNetwork", true));
    let of_node = |ips: [&str; 2]| {
        let mut all = ips.map(|ip| json!({ "type": "InternalIP", "address": ip })).to_vec();
        all.push(json!({ "type": "Hostname", "address": "node1" }));
        Value::from(all)
    };
    let shown = |ips: [&str; 2]| {
        let shown = |pod: &Value| ready(pod) && addresses(&pod["status"]["hostIPs"]) == ips;
        let (web, _) = member.wait("web shows both", || member.mirror("web"), shown);
        let (host, _) = member.wait("host shows both", || member.mirror("host"), shown);
        let node = |node: &Value| node["status"]["addresses"] == of_node(ips);
        member.wait("the node shows both", || member.node(), node);
        for pod in [&web, &host] {
            assert_eq!(pod["status"]["hostIP"], ips[0], "{pod:#}");
            assert_eq!(pod["status"]["podIP"], pod["status"]["podIPs"][0]["ip"], "{pod:#}");
        }
        assert_eq!(addresses(&host["status"]["podIPs"]), ips);
        web
    };
    let web = shown(["127.0.0.7", "fd00::7"]);
    let of_web = addresses(&web["status"]["podIPs"]);
    assert_eq!(of_web.len(), 2, "{web:#}");
    assert!(of_web[0].starts_with("10.88.") && of_web[1].starts_with("fd00::"), "{of_web:?}");

    // The other family first.
    let running = ["web", "host"].map(|name| world.running_ids(name));
    world.agent.kill();
    world.agent.remove_flags("--node-ip");
    world.agent.add_flag("--node-ip=fd00::8,127.0.0.8".to_owned());
    world.agent.start();
    let web = shown(["fd00::8", "127.0.0.8"]);
    let now = addresses(&web["status"]["podIPs"]);
    assert_eq!(now, [of_web[1], of_web[0]], "the family of the node comes first");
    assert_eq!(["web", "host"].map(|name| world.running_ids(name)), running);
    member.finish();
}

/// The agent's interfaces change while it runs, and the API server can be reached all the time.
#[test]
fn a_new_address_of_the_machine_is_shown() {
    if skip_without(&[skips::root()]) {
        return;
    }
    let link = Link::start_in_namespace;
    let Some(member) = Member::prepare_by(link, &Options::default(), &hasty()) else { return };
    let world = &member.world;
    let namespace = world.slot.network_namespace();
    let ip = |arguments: &str| support::ip(&format!("-n {namespace} {arguments}"));
    ip("link set lo up");
    ip("link add lan type veth peer name far");
    ip("link set lan up");
    ip("link set far up");
    ip("address add 192.0.2.7/24 dev lan");
    ip("route add default via 192.0.2.1");
    world.agent.in_network_namespace(&namespace);
    let member = member.started().shows_web();
    let world = &member.world;
    world.drop_pod(&Pod::running("host").set("hostNetwork", true));
    let shown = |address: &str| {
        let of_node = json!([
            { "type": "InternalIP", "address": address },
            { "type": "Hostname", "address": "node1" },
        ]);
        let node = |node: &Value| ready(node) && node["status"]["addresses"] == of_node;
        member.wait("the node shows its address", || member.node(), node);
        let with_address =
            |field: &'static str| move |pod: &Value| ready(pod) && pod["status"][field] == address;
        member.wait("web shows it", || member.mirror("web"), with_address("hostIP"));
        let host = || member.mirror("host");
        let (host, _) = member.wait("host has it", host, with_address("podIP"));
        assert_eq!(host["status"]["hostIP"], address, "{host:#}");
    };
    shown("192.0.2.7");

    let running = ["web", "host"].map(|name| world.running_ids(name));
    ip("address flush dev lan");
    ip("address add 198.51.100.9/24 dev lan");
    ip("route add default via 198.51.100.1");
    shown("198.51.100.9");
    assert_eq!(["web", "host"].map(|name| world.running_ids(name)), running);
    member.finish();
}
