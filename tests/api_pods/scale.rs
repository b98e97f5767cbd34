//! Many pods at a time, and pods that can't run.

use super::{
    node::{Node, PODS, WAITS, plain},
    support::say_loudly,
};
use serde_json::{Value, json};
use tokio::time::Instant;

pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
pub const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// A Deployment without replicas.
pub fn deployment(name: &str, script: &str) -> Value {
    let mut pod = plain(name, script);
    let spec = pod["spec"].take();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": 0,
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": spec },
        },
    })
}

/// A Job whose pods are like this one, and run once.
pub fn job(name: &str, completions: usize, parallelism: usize, mut pod: Value) -> Value {
    let mut spec = pod["spec"].take();
    spec["restartPolicy"] = json!("Never");
    let template = json!({ "spec": spec });
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": name },
        "spec": { "completions": completions, "parallelism": parallelism, "template": template },
    })
}

/// Scales to a number of replicas, and waits until all of them are Ready and no other is left.
fn scale(node: &Node, name: &str, replicas: u64) {
    let begun = Instant::now();
    let patch = json!({ "spec": { "replicas": replicas } });
    node.admin().patch(&format!("{DEPLOYMENTS}/{name}"), &patch).unwrap().ok();
    let status = || node.admin().get(&format!("{DEPLOYMENTS}/{name}"))["status"].clone();
    let number = |status: &Value, field: &str| status[field].as_u64().unwrap_or_default();
    node.wait(&format!("{replicas} replicas are ready"), status, |status| {
        number(status, "readyReplicas") == replicas && number(status, "replicas") == replicas
    });
    say_loudly(&format!("{name}: {replicas} replicas after {:.1?}", begun.elapsed()));
    let sandboxes = || node.world.cri.sandboxes().len() as u64;
    node.wait("no other pod is left", sandboxes, |left| *left == replicas);
    say_loudly(&format!("{name}: nothing else is left after {:.1?}", begun.elapsed()));
}

#[test]
fn a_deployment_grows_and_shrinks() {
    let Some(node) = Node::start() else { return };
    node.admin().create(DEPLOYMENTS, &deployment("web", WAITS)).unwrap().ok();
    for replicas in [30, 80, 0] {
        scale(&node, "web", replicas);
    }
    node.finish();
}

#[test]
fn jobs_with_many_completions_and_by_the_clock_complete() {
    let Some(node) = Node::start() else { return };
    let job = job("work", 50, 10, plain("work", "exit 0"));
    let spec = &job["spec"]["template"]["spec"];
    let cron_jobs = "/apis/batch/v1/namespaces/default/cronjobs";
    let every_minute = json!({
        "apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": { "name": "clock" },
        "spec": {
            "schedule": "* * * * *",
            "jobTemplate": { "spec": { "template": { "spec": spec } } },
        },
    });
    node.admin().create(cron_jobs, &every_minute).unwrap().ok();
    let begun = Instant::now();
    node.admin().create(JOBS, &job).unwrap().ok();
    let status = || node.admin().get(&format!("{JOBS}/work"))["status"].clone();
    let completed = node.wait("the job is complete", status, |status| {
        status["succeeded"] == 50 && status["completionTime"].is_string()
    });
    assert!(completed["failed"].is_null(), "{completed}");
    say_loudly(&format!("50 completions, 10 at a time, after {:.1?}", begun.elapsed()));
    let succeeded =
        || node.admin().get(&format!("{cron_jobs}/clock"))["status"]["lastSuccessfulTime"].clone();
    node.wait("a job of the clock has succeeded", succeeded, Value::is_string);
    node.finish();
}

#[test]
fn pods_that_cannot_run_say_why() {
    let Some(node) = Node::start() else { return };
    let mut absent = plain("absent", WAITS);
    absent["spec"]["containers"][0]["image"] = json!("127.0.0.1:1/absent:1");
    node.create(&absent);
    let mut crashing = deployment("crashing", "exit 1");
    crashing["spec"]["replicas"] = json!(1);
    node.admin().create(DEPLOYMENTS, &crashing).unwrap().ok();
    let mut csi = plain("csi", WAITS);
    csi["spec"]["volumes"] = json!([{ "name": "data", "csi": { "driver": "x.example" } }]);
    csi["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    node.create(&csi);
    let waiting =
        |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    let one_of = |reasons: [&'static str; 2]| {
        move |pod: &Value| waiting(pod).as_str().is_some_and(|reason| reasons.contains(&reason))
    };
    node.wait_pod("absent", "has no image", one_of(["ErrImagePull", "ImagePullBackOff"]));
    let of_deployment = || {
        let pods = node.admin().get(&format!("{PODS}?labelSelector=app%3Dcrashing"));
        pods["items"].as_array().unwrap().clone()
    };
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
    let backed_off = one_of(["CrashLoopBackOff"; 2]);
    let pods = node.wait("the Deployment's pod is backed off", of_deployment, |pods| {
        pods.iter().any(|pod| backed_off(pod) && restarts(pod) > Some(1))
    });
    assert_eq!(pods.len(), 1, "its container is restarted, and no other pod made: {pods:#?}");
    let events =
        || node.plane.kubectl_text(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    node.wait("the volume is named", events, |events| {
        events.contains("csi") && events.contains("not supported")
    });
    let pod = node.pod("csi").unwrap();
    assert_eq!(pod["status"]["phase"], "Pending");
    for name in ["absent", "csi"] {
        node.delete(name);
        node.wait_pod_gone(name);
    }
    node.finish();
}
