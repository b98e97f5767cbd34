//! The floor for pods of the API server: a bare client that watches the pods of its node and makes
//! the CRI calls of [`Floor`] for each. It writes once that a pod is Ready, and stops the pod and
//! deletes its object when that is to go. It decides nothing and keeps nothing but what it has started.

use crate::{
    controlplane::{ControlPlane, client::Client, link::Link, pki::Validity},
    floor::{Floor, Started},
    objects::{self, NODES},
    stage::Background,
    support::agent::NODE_NAME,
};
use hyper::Method;
use nodelet::model::k8s;
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

/// The client, at work.
pub struct ApiPodFloor {
    _following: Background,
}

/// What the tasks of the pods share.
#[derive(Clone)]
struct Calls {
    floor: Floor,
    client: Arc<Client>,
    places: Arc<Semaphore>,
}

impl ApiPodFloor {
    /// Makes the Node, and follows what is bound to it.
    pub fn start(floor: &Floor, plane: &ControlPlane, link: &Link, at_a_time: usize) -> Self {
        let mut node = objects::node(NODE_NAME);
        let room = json!({ "cpu": "2", "memory": "8Gi", "pods": "200" });
        node["status"]["capacity"] = room.clone();
        node["status"]["allocatable"] = room;
        plane.admin.create(NODES, &node).unwrap().ok();
        let authority = plane.authority();
        let identity = authority.client("floor", &["system:masters"], Validity::Long);
        let calls = Calls {
            floor: floor.clone(),
            client: Arc::new(Client::new(link.address(), &authority, Some(&identity))),
            places: Arc::new(Semaphore::new(at_a_time)),
        };
        Self { _following: Background::start(calls.follow()) }
    }
}

impl Calls {
    async fn follow(self) {
        let path = format!(
            "/api/v1/pods?watch=1&timeoutSeconds=86400&fieldSelector=spec.nodeName%3D{NODE_NAME}"
        );
        let (mut ends, mut tasks) = (HashMap::<String, oneshot::Sender<()>>::new(), JoinSet::new());
        let watched = self.client.watch(&path, |event| {
            let pod = &event["object"];
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            if pod["metadata"]["deletionTimestamp"].is_string() {
                if let Some(end) = ends.remove(uid) {
                    end.send(()).expect("the pod's task waits for its end");
                }
            } else if !ends.contains_key(uid) {
                let (end, ended) = oneshot::channel();
                ends.insert(uid.to_owned(), end);
                tasks.spawn(self.clone().live(pod.clone(), ended));
            }
        });
        panic!("the floor's watch is over: {:?}", watched.await);
    }

    /// One pod from its binding to its end.
    async fn live(self, pod: Value, ended: oneshot::Receiver<()>) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let path = format!("{}/{name}", objects::PODS);
        let typed: k8s::Pod = serde_json::from_value(pod.clone()).unwrap();
        let started = {
            let _place = self.places.acquire().await.unwrap();
            Box::pin(self.floor.run_pod(typed)).await
        };
        let status = ready(&pod, &started, &self.floor.address(&started).await);
        let kind = "application/strategic-merge-patch+json";
        self.ask(Method::PATCH, &format!("{path}/status"), Some((kind, &status))).await;
        ended.await.expect("the watch goes on");
        {
            let _place = self.places.acquire().await.unwrap();
            self.floor.stop_pod(&started).await;
        }
        self.ask(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), None).await;
        self.floor.remove_pod(&started).await;
    }

    async fn ask(&self, method: Method, path: &str, body: Option<(&str, &Value)>) {
        self.client.ask(method, path, body).await.unwrap().ok();
    }
}

/// The status of a pod whose only container has just started.
fn ready(pod: &Value, started: &Started, address: &str) -> Value {
    let now = nodelet::clock::now().wall.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let kinds = ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"];
    let conditions =
        kinds.map(|kind| json!({ "type": kind, "status": "True", "lastTransitionTime": now }));
    let container = &pod["spec"]["containers"][0];
    json!({ "status": {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{ "ip": address }],
        "conditions": conditions,
        "containerStatuses": [{
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "containerID": format!("containerd://{}", started.container()),
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": { "running": { "startedAt": now } },
        }],
    } })
}
