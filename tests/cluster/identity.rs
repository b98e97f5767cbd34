//! What a node may do under its own name, and what it is told when it may not.

use super::{
    control_plane,
    controlplane::{
        Options,
        client::Client,
        kubeconfig::Kubeconfig,
        pki::{Authority, Validity},
    },
    objects::{self, LEASES, NODES, PODS},
};
use serde_json::json;
use std::path::Path;

#[test]
fn a_node_has_its_own_things() {
    let Some((cluster, _slot)) = control_plane(&Options::default()) else { return };
    let kubeconfig = cluster.node_kubeconfig("one", cluster.address());
    let one = cluster.client(&cluster.node_identity("one"));
    cluster.admin.create(NODES, &objects::node("two")).unwrap().ok();
    cluster.admin.create(LEASES, &objects::lease("two")).unwrap().ok();
    // What a controller manager makes: only mirror pods do without.
    let account = json!({ "metadata": { "name": "default" } });
    cluster.admin.create("/api/v1/namespaces/default/serviceaccounts", &account).unwrap().ok();
    let kubectl = |arguments: &[&str], input: &str| -> Result<String, String> {
        let output = cluster.kubectl_as(&kubeconfig, arguments, input);
        let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        if output.status.success() { Ok(out) } else { Err(err) }
    };
    let create = |object: &serde_json::Value| {
        kubectl(&["create", "-f", "-", "-o", "json"], &object.to_string())
    };
    let forbidden = |what: &str, said: Result<String, String>, why: &str| {
        let said = said.expect_err(what);
        assert!(said.contains("Forbidden") || said.contains("forbidden"), "{what}: {said}");
        assert!(said.contains(why), "{what}: {said}");
    };

    let whoami = kubectl(&["auth", "whoami"], "").unwrap();
    assert!(whoami.contains("system:node:one") && whoami.contains("system:nodes"), "{whoami}");
    let node = create(&objects::node("one")).unwrap();
    let node = serde_json::from_str(&node).unwrap();
    create(&objects::lease("one")).unwrap();
    create(&objects::mirror("web", &node)).unwrap();
    // kubectl reads what it patches, which a node may not do with this subresource.
    let status = json!({ "status": { "phase": "Running" } });
    let patched = one.patch(&format!("{PODS}/web/status"), &status).unwrap().ok();
    assert_eq!(patched["status"]["phase"], "Running");
    kubectl(&["annotate", "node", "one", "seen=yes"], "").unwrap();

    forbidden("another's name", create(&objects::node("three")), "is not allowed to modify");
    forbidden("another's lease", create(&objects::lease("two")), "can only access node lease");
    let annotate = kubectl(&["annotate", "node", "two", "seen=yes"], "");
    forbidden("another's node", annotate, "cannot get resource");
    forbidden("all nodes", kubectl(&["get", "nodes"], ""), "cannot list resource");
    let pod = create(&objects::pod("not-a-mirror", "one"));
    forbidden("a pod of its own", pod, "can only create mirror pods");
    let mut elsewhere = objects::mirror("elsewhere", &node);
    elsewhere["spec"]["nodeName"] = json!("two");
    forbidden("a mirror elsewhere", create(&elsewhere), "spec.nodeName set to itself");
    // Two admission plugins, each with words of its own.
    for (volume, why) in [
        (json!({ "name": "v", "secret": { "secretName": "s" } }), "may not reference secrets"),
        (json!({ "name": "v", "configMap": { "name": "c" } }), "reference configmaps"),
    ] {
        let mut claims = objects::mirror("claims", &node);
        claims["spec"]["volumes"] = json!([volume]);
        forbidden("a mirror with references", create(&claims), why);
    }
    let taint = kubectl(&["taint", "node", "one", "a=b:NoSchedule"], "");
    forbidden("its taints", taint, "is not allowed to modify taints");
    let label = kubectl(&["label", "node", "one", "kubernetes.io/role=king"], "");
    forbidden("labels that are not its", label, "is not allowed to modify labels");
    forbidden("its end", kubectl(&["delete", "node", "one"], ""), "cannot delete resource");
}

#[test]
fn who_is_not_believed() {
    let Some((cluster, _slot)) = control_plane(&Options::default()) else { return };
    let whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let ask = |client: &Client| client.create(whoami, &review).unwrap().status;
    let foreign = Authority::new("test-ca");
    let groups = ["system:nodes"];
    let short = Validity::EndsIn(std::time::Duration::from_secs(3600));
    assert_eq!(ask(&cluster.client(&cluster.node_identity("one"))), 201);
    assert_eq!(ask(&cluster.client(&cluster.node_identity_for("one", short))), 201);
    let expired = cluster.node_identity_for("one", Validity::Expired);
    assert_eq!(ask(&cluster.client(&expired)), 401);
    let other = foreign.client("system:node:one", &groups, Validity::Long);
    assert_eq!(ask(&cluster.client(&other)), 401);

    // The other way round: a client that trusts another authority says so and asks nothing.
    let mistaken = Client::new(cluster.address(), &foreign, Some(&cluster.node_identity("one")));
    let refused = mistaken.create(whoami, &review).unwrap_err();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    let kubeconfig = Kubeconfig {
        authority_pem: foreign.pem().to_owned(),
        ..Kubeconfig::new(cluster.address(), &foreign, &expired)
    };
    let path = kubeconfig.write(Path::new(&cluster.admin_kubeconfig().with_file_name("mistaken")));
    let output = cluster.kubectl_as(&path, &["get", "nodes"], "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("certificate"), "{said}");
}
