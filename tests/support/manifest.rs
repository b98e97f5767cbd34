//! Manifests, written short.

use super::images::BUSYBOX;
use serde_json::{Map, Value, json};
use std::path::Path;

/// A script that runs until it is told to stop, and then ends at once.
pub const FOREVER: &str = "trap 'exit 0' TERM; sleep 100000 & wait";
/// A script that takes no notice of SIGTERM.
pub const STUBBORN: &str = "sleep 100000";

/// A pod's manifest in the making. Containers run `sh -c SCRIPT` in busybox.
#[derive(Clone, Debug)]
pub struct Pod(Value);

impl Pod {
    /// A pod without containers, with a grace period of 1 s, in namespace `default`.
    pub fn named(name: &str) -> Self {
        Self(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [] },
        }))
    }

    /// A pod with one container `main` that runs until it is stopped.
    pub fn running(name: &str) -> Self {
        Self::named(name).container("main", FOREVER)
    }

    /// A pod with one container `main`.
    pub fn with_main(name: &str, script: &str) -> Self {
        Self::named(name).container("main", script)
    }

    /// Adds a container.
    pub fn container(self, name: &str, script: &str) -> Self {
        self.push("containers", container(name, script))
    }

    /// Adds an init container.
    pub fn init(self, name: &str, script: &str) -> Self {
        self.push("initContainers", container(name, script))
    }

    /// Adds a sidecar: an init container with `restartPolicy: Always`.
    pub fn sidecar(self, name: &str, script: &str) -> Self {
        let mut sidecar = container(name, script);
        sidecar["restartPolicy"] = json!("Always");
        self.push("initContainers", sidecar)
    }

    /// Sets what `pointer` names below `spec` (`restartPolicy`, `containers/0/env`), making the
    /// objects on the way.
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let mut place = &mut self.0["spec"];
        for part in pointer.split('/') {
            place = match part.parse::<usize>() {
                Ok(index) => &mut place[index],
                Err(_) => &mut place[part],
            };
        }
        *place = value.into();
        self
    }

    /// Gives every container this directory of the host at `/host`.
    pub fn host_dir(mut self, dir: &Path) -> Self {
        for list in ["initContainers", "containers"] {
            let containers = self.0["spec"][list].as_array_mut();
            for container in containers.into_iter().flatten() {
                container["volumeMounts"] = json!([{ "name": "host", "mountPath": "/host" }]);
            }
        }
        self.set("volumes", json!([{ "name": "host", "hostPath": { "path": dir } }]))
    }

    /// Sets a field of `metadata`.
    pub fn meta(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["metadata"][field] = value.into();
        self
    }

    /// Sets an environment variable of container `main`; a change of it makes another pod.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        let variables = &mut self.0["spec"]["containers"][0]["env"];
        if variables.is_null() {
            *variables = json!([]);
        }
        let list = variables.as_array_mut().unwrap();
        list.retain(|variable| variable["name"] != name);
        list.push(json!({ "name": name, "value": value }));
        self
    }

    /// The file's content. JSON is YAML too.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(&self.0).unwrap()
    }

    /// The manifest as a value.
    pub fn value(&self) -> &Value {
        &self.0
    }

    fn push(mut self, list: &str, item: Value) -> Self {
        let spec = &mut self.0["spec"];
        if spec[list].is_null() {
            spec[list] = json!([]);
        }
        spec[list].as_array_mut().unwrap().push(item);
        self
    }
}

fn container(name: &str, script: &str) -> Value {
    let mut container = Map::new();
    container.insert("name".to_owned(), json!(name));
    container.insert("image".to_owned(), json!(BUSYBOX));
    container.insert("command".to_owned(), json!(["sh", "-c", script]));
    Value::Object(container)
}
