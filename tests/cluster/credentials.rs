//! Certificates that are wrong, run out and are replaced, all without a restart of the agent.

use super::{
    agent::{Member, figure, ready},
    controlplane::{
        kubeconfig::{Kubeconfig, replace},
        pki::{Authority, Identity, Validity},
    },
    support::{agent::NODE_NAME, manifest::Pod},
};
use serde_json::json;
use std::{fs, time::Duration};
use tokio::time::Instant;

#[test]
fn certificates_are_told_of_when_wrong_and_taken_up_when_right() {
    let Some(member) = Member::with_web() else { return };
    let (world, plane) = (&member.world, &member.plane);
    let running = world.running_ids("web");
    let pid = world.agent.pid();
    let path = plane.node_kubeconfig(NODE_NAME, member.link.address());
    let right =
        Kubeconfig::new(member.link.address(), &plane.authority(), &plane.node_identity(NODE_NAME));
    let foreign = Authority::new("test-ca");
    let user = format!("system:node:{NODE_NAME}");
    let of = |identity| Kubeconfig { identity, ..right.clone() };
    let foreign_authority =
        || Kubeconfig { authority_pem: foreign.pem().to_owned(), ..right.clone() };
    let foreign_client = || of(foreign.client(&user, &["system:nodes"], Validity::Long));
    // Long enough to be used first.
    let soon_over = Validity::EndsIn(Duration::from_secs(25));
    let runs_out = || of(plane.node_identity_for(NODE_NAME, soon_over));
    let cases: [(&str, &str, bool, &dyn Fn() -> Kubeconfig); 3] = [
        ("a foreign authority", "invalid peer certificate", false, &foreign_authority),
        ("a foreign client certificate", "Unauthorized", false, &foreign_client),
        ("a client certificate that runs out", "Unauthorized", true, &runs_out),
    ];
    for (number, (what, told, good_at_first, wrong)) in cases.into_iter().enumerate() {
        let connections = member.link.tcp.connections();
        wrong().write(&path);
        if good_at_first {
            let connected = || member.link.tcp.connections();
            member.wait("it is taken up", connected, |now| *now > connections);
            member.wait_renewed();
        }
        member.wait_told(told);
        let late = format!("late-{number}");
        world.drop_pod(&Pod::running(&late));
        world.wait_running(&late);
        right.write(&path);
        let begun = Instant::now();
        member.wait("the new pod is mirrored", || member.mirror(&late), ready);
        member.wait_renewed();
        member.wait("the node is Ready", || member.node(), ready);
        member.wait_untroubled();
        figure(
            &format!("{what}, then the right one → node and pods shown as they are"),
            begun.elapsed(),
        );
    }

    // Rotated by hand: between the two renames the files do not fit, and what was read before is
    // used on.
    let [_, certificate, key] = Kubeconfig::files(&path);
    let next = plane.node_identity(NODE_NAME);
    replace(&certificate, &next.certificate_pem);
    member.wait_told("credentials: ");
    member.wait_renewed();
    let connections = member.link.tcp.connections();
    replace(&key, &next.key_pem);
    member.wait_untroubled();
    member.wait_renewed();
    assert!(member.link.tcp.connections() > connections, "the new one is shown");
    assert_eq!((world.running_ids("web"), world.agent.pid()), (running, pid));
    member.finish();
}

/// A plugin that names no time of expiry is run again when the API server rejects what it gave.
#[test]
fn a_plugin_runs_again_when_its_credentials_are_rejected() {
    let Some(member) = Member::with_web() else { return };
    let plane = &member.plane;
    let path = plane.node_kubeconfig(NODE_NAME, member.link.address());
    // Not in the directory of the kubeconfig, whose changes are read at once.
    let issued = path.with_file_name("issued").join("credential.json");
    fs::create_dir_all(issued.parent().unwrap()).unwrap();
    let issue = |identity: &Identity| {
        let status = json!({
            "clientCertificateData": identity.certificate_pem,
            "clientKeyData": identity.key_pem,
        });
        let version = "client.authentication.k8s.io/v1";
        let credential = json!({"apiVersion": version, "kind": "ExecCredential", "status": status});
        replace(&issued, &credential.to_string());
    };
    let (user, foreign) = (format!("system:node:{NODE_NAME}"), Authority::new("test-ca"));
    issue(&foreign.client(&user, &["system:nodes"], Validity::Long));
    let [_, certificate, key] = Kubeconfig::files(&path);
    let own = format!(
        "    client-certificate: {}\n    client-key: {}\n",
        certificate.display(),
        key.display()
    );
    let exec = format!(
        "    exec: {{ apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: cat, args: [{}] }}\n",
        issued.display()
    );
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(&own), "{text}");
    replace(&path, &text.replace(&own, &exec));
    member.wait_told("Unauthorized");
    issue(&plane.node_identity(NODE_NAME));
    member.wait_renewed();
    member.wait_untroubled();
    member.finish();
}

/// What this version can't do is said with the name of the field, and what was read before is used
/// on.
#[test]
fn a_proxy_is_refused_by_the_name_of_its_field() {
    let Some(member) = Member::with_web() else { return };
    let path = member.plane.node_kubeconfig(NODE_NAME, member.link.address());
    let right = fs::read_to_string(&path).unwrap();
    let connections = || member.link.tcp.connections();
    let watches = || member.link.http.count("WATCH", "/");
    member.wait_renewed();
    // The Node, pods, Services and RuntimeClasses, the last two of them a little later.
    member.wait("everything is watched", watches, |now| *now >= 4);
    let before = (connections(), watches());
    let proxied = right.replace("    server:", "    proxy-url: http://192.0.2.1:3128\n    server:");
    replace(&path, &proxied);
    member.wait_told("clusters[test].cluster.proxy-url");
    member.wait_renewed();
    let now = (connections(), watches());
    assert_eq!(now, before, "nothing was begun anew for a file that can't be used");
    replace(&path, &right);
    member.wait_untroubled();
    // A cluster that is not the present one may have whatever it wants.
    let other = "\n- name: other\n  cluster: { server: \"https://192.0.2.1\", proxy-url: \"http://192.0.2.1:3128\" }\nusers:";
    replace(&path, &right.replacen("\nusers:", other, 1));
    member.wait("it is taken up", connections, |now| *now > before.0);
    member.wait_renewed();
    member.wait_untroubled();
    member.finish();
}
