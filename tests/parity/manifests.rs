//! The pods that both agents run. Together they set about every field that reaches a CRI request.

use crate::support::{
    images::BUSYBOX,
    manifest::{FOREVER, Pod},
};
use serde_json::json;

/// A pod and how many containers are started in it before it is compared.
pub struct Case {
    /// The manifest.
    pub pod: Pod,
    /// Starts to wait for, restarts included; 0 where the pod can't start.
    pub starts: usize,
}

/// All of them. `host_dir` is a directory of the host, the same for both agents.
pub fn all(host_dir: &str) -> Vec<Case> {
    let mut cases = vec![
        case(Pod::running("plain"), 1),
        case(identity(), 1),
        case(environment(), 1),
        case(ports(), 1),
        case(host_namespaces(), 1),
        case(shared_processes(), 2),
        case(own_dns(), 1),
        case(volumes(host_dir), 1),
        case(order(), 4),
        case(job(), 1),
        case(crasher(), 2),
        case(missing_image(), 0),
    ];
    cases.extend(names());
    cases.extend([case(downward(), 1), case(hooked(), 1), case(ruled(), 2)]);
    cases.extend(resources());
    cases.extend(security());
    cases
}

fn case(pod: Pod, starts: usize) -> Case {
    Case { pod, starts }
}

fn identity() -> Pod {
    Pod::running("identity")
        .meta("namespace", "other")
        .meta("labels", json!({ "app": "identity", "tier/of.it": "back" }))
        .meta("annotations", json!({ "example.com/note": "two\nlines" }))
        .set("hostname", "chosen")
        .set("subdomain", "group")
        .set("hostAliases", json!([{ "ip": "192.0.2.7", "hostnames": ["seven", "siete"] }]))
        .set("priority", 7)
        .set("terminationGracePeriodSeconds", 5)
        .set("containers/0/terminationMessagePath", "/tmp/last-words")
        .set("containers/0/terminationMessagePolicy", "FallbackToLogsOnError")
        .set("containers/0/workingDir", "/tmp")
        .set("containers/0/stdin", true)
        .set("containers/0/stdinOnce", true)
        .set("containers/0/tty", true)
}

fn environment() -> Pod {
    let of_field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let of_resource = |what: &str| json!({ "resourceFieldRef": { "resource": what } });
    Pod::running("environment")
        .meta("annotations", json!({ "example.com/note": "noted" }))
        .set("containers/0/args", json!(["$(GREETING)", "$$(GREETING)", "$(NOBODY)"]))
        .set("containers/0/resources", json!({ "limits": { "cpu": "700m", "memory": "64Mi" } }))
        .set(
            "containers/0/env",
            json!([
                { "name": "WORLD", "value": "world" },
                { "name": "GREETING", "value": "hello $(WORLD), $(LATER)" },
                { "name": "LATER", "value": "later" },
                { "name": "WORLD", "value": "again" },
                { "name": "EMPTY" },
                { "name": "NAME", "valueFrom": of_field("metadata.name") },
                { "name": "NAMESPACE", "valueFrom": of_field("metadata.namespace") },
                { "name": "UID_OF_POD", "valueFrom": of_field("metadata.uid") },
                { "name": "NODE", "valueFrom": of_field("spec.nodeName") },
                { "name": "ACCOUNT", "valueFrom": of_field("spec.serviceAccountName") },
                { "name": "LABEL", "valueFrom": of_field("metadata.labels['app']") },
                { "name": "NOTE", "valueFrom": of_field("metadata.annotations['example.com/note']") },
                { "name": "CPU_LIMIT", "valueFrom": of_resource("limits.cpu") },
                { "name": "MEMORY_LIMIT", "valueFrom": of_resource("limits.memory") },
                { "name": "CPU_REQUEST", "valueFrom": of_resource("requests.cpu") },
            ]),
        )
}

fn ports() -> Pod {
    Pod::running("ports").set(
        "containers/0/ports",
        json!([
            { "name": "web", "containerPort": 80, "hostPort": 29_871 },
            { "containerPort": 53, "protocol": "UDP", "hostPort": 29_872, "hostIP": "127.0.0.1" },
            { "containerPort": 8080 },
        ]),
    )
}

fn host_namespaces() -> Pod {
    Pod::running("host")
        .set("hostNetwork", true)
        .set("hostPID", true)
        .set("hostIPC", true)
        .set("dnsPolicy", "ClusterFirstWithHostNet")
}

fn shared_processes() -> Pod {
    Pod::running("shared")
        .container("other", FOREVER)
        .set("shareProcessNamespace", true)
        .set("dnsPolicy", "Default")
}

fn own_dns() -> Pod {
    Pod::running("own-dns").set("dnsPolicy", "None").set(
        "dnsConfig",
        json!({
            "nameservers": ["192.0.2.53"],
            "searches": ["one.invalid", "two.invalid"],
            "options": [{ "name": "ndots", "value": "3" }, { "name": "rotate" }],
        }),
    )
}

fn volumes(host_dir: &str) -> Pod {
    Pod::running("volumes")
        .set(
            "volumes",
            json!([
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                { "name": "host", "hostPath": { "path": host_dir } },
                { "name": "made", "hostPath": { "path": format!("{host_dir}/made"), "type": "DirectoryOrCreate" } },
                { "name": "file", "hostPath": { "path": format!("{host_dir}/file"), "type": "FileOrCreate" } },
            ]),
        )
        .set("containers/0/env", json!([{ "name": "PART", "value": "two" }]))
        .set(
            "containers/0/volumeMounts",
            json!([
                { "name": "disk", "mountPath": "/disk" },
                { "name": "disk", "mountPath": "/disk-part", "subPath": "a/b" },
                { "name": "disk", "mountPath": "/disk-expr", "subPathExpr": "part-$(PART)" },
                { "name": "memory", "mountPath": "memory" },
                { "name": "host", "mountPath": "/host", "readOnly": true, "mountPropagation": "HostToContainer" },
                { "name": "made", "mountPath": "/made" },
                { "name": "file", "mountPath": "/file" },
                { "name": "host", "mountPath": "/all", "readOnly": true, "recursiveReadOnly": "IfPossible" },
            ]),
        )
}

fn order() -> Pod {
    Pod::running("order")
        .init("first", "exit 0")
        .sidecar("beside", FOREVER)
        .init("second", "exit 0")
        .set("terminationGracePeriodSeconds", 3)
}

fn job() -> Pod {
    Pod::with_main("job", "exit 0").set("restartPolicy", "Never")
}

fn crasher() -> Pod {
    Pod::with_main("crasher", "exit 3").set("restartPolicy", "OnFailure")
}

fn missing_image() -> Pod {
    Pod::running("missing").set("containers/0/image", "registry.invalid/nobody/nothing:9")
}

fn names() -> Vec<Case> {
    let full = Pod::running("full").set("hostname", "chosen").set("subdomain", "group");
    vec![
        case(full.set("setHostnameAsFQDN", true), 1),
        case(Pod::running("override").set("hostnameOverride", "chosen.example"), 1),
    ]
}

/// No projected volume: without an API server the kubelet sets none up.
fn downward() -> Pod {
    let items = json!([
        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
        { "path": "cpu", "mode": 0o400,
          "resourceFieldRef": { "containerName": "main", "resource": "limits.cpu" } },
    ]);
    Pod::running("downward")
        .set("containers/0/resources", json!({ "limits": { "cpu": "300m" } }))
        .set(
            "volumes",
            json!([{ "name": "own", "downwardAPI": { "items": items, "defaultMode": 0o440 } }]),
        )
        .set(
            "containers/0/volumeMounts",
            json!([
                { "name": "own", "mountPath": "/own" },
                { "name": "own", "mountPath": "/part", "subPath": "labels" },
            ]),
        )
}

/// Each command is called once. No preStop hook: what it takes of the grace period is rounded to
/// seconds, and differs from run to run.
fn hooked() -> Pod {
    let exec = |word: &str| json!({ "exec": { "command": ["sh", "-c", "true", "$(WORD)", word] } });
    let mut probe = exec("started");
    probe["timeoutSeconds"] = json!(7);
    Pod::running("hooked")
        .set("terminationGracePeriodSeconds", 4)
        .set("containers/0/env", json!([{ "name": "WORD", "value": "word" }]))
        .set("containers/0/lifecycle", json!({ "postStart": exec("starts") }))
        .set("containers/0/startupProbe", probe)
}

fn ruled() -> Pod {
    let rule = json!({ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } });
    Pod::with_main("ruled", "exit 42")
        .set("restartPolicy", "Never")
        .set("containers/0/restartPolicy", "Never")
        .set("containers/0/restartPolicyRules", json!([rule]))
}

fn resources() -> Vec<Case> {
    let with = |name: &str, resources: serde_json::Value| {
        case(Pod::running(name).set("containers/0/resources", resources), 1)
    };
    vec![
        with("burstable", json!({ "requests": { "cpu": "100m", "memory": "16Mi" } })),
        with(
            "limited",
            json!({ "requests": { "cpu": "10m" }, "limits": { "cpu": "250m", "memory": "32Mi" } }),
        ),
        with(
            "guaranteed",
            json!({ "requests": { "cpu": "100m", "memory": "32Mi" }, "limits": { "cpu": "100m", "memory": "32Mi" } }),
        ),
        case(
            Pod::running("whole").container("other", FOREVER).set(
                "resources",
                json!({ "requests": { "cpu": "100m", "memory": "32Mi" },
                        "limits": { "cpu": "300m", "memory": "64Mi" } }),
            ),
            2,
        ),
        case(
            Pod::running("heavy")
                .set(
                    "containers/0/resources",
                    json!({ "limits": { "cpu": "200m", "memory": "32Mi" } }),
                )
                .set("overhead", json!({ "cpu": "100m", "memory": "16Mi" })),
            1,
        ),
        with("tiny", json!({ "requests": { "cpu": "1m" }, "limits": { "cpu": "1m" } })),
        case(
            Pod::running("summed")
                .init("greedy", "exit 0")
                .container("other", FOREVER)
                .set(
                    "initContainers/0/resources",
                    json!({ "requests": { "cpu": "300m", "memory": "64Mi" } }),
                )
                .set("containers/0/resources", json!({ "requests": { "cpu": "100m" } }))
                .set("containers/1/resources", json!({ "requests": { "memory": "8Mi" } })),
            3,
        ),
    ]
}

fn security() -> Vec<Case> {
    vec![
        case(
            Pod::running("restricted")
                .set(
                    "securityContext",
                    json!({
                        "runAsUser": 1234, "runAsGroup": 2345, "runAsNonRoot": true,
                        "fsGroup": 3456, "supplementalGroups": [4567, 5678],
                        "seccompProfile": { "type": "RuntimeDefault" },
                        "sysctls": [{ "name": "net.ipv4.ip_unprivileged_port_start", "value": "80" }],
                    }),
                )
                .set(
                    "containers/0/securityContext",
                    json!({
                        "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
                    }),
                ),
            1,
        ),
        case(
            Pod::running("privileged")
                .set("containers/0/securityContext", json!({ "privileged": true, "runAsUser": 0 })),
            1,
        ),
        case(
            Pod::running("own-user")
                .container("other", FOREVER)
                .set("securityContext", json!({ "runAsUser": 10 }))
                .set("containers/0/securityContext", json!({ "runAsUser": 11, "runAsGroup": 12 }))
                .set(
                    "containers/1/securityContext",
                    json!({ "seccompProfile": { "type": "Unconfined" }, "capabilities": { "add": ["SYS_TIME"] } }),
                ),
            2,
        ),
        case(
            Pod::running("image-user")
                .container("by-name", FOREVER)
                .set("containers/0/image", BUSYBOX.replace(":1", ":user"))
                .set("containers/0/securityContext", json!({ "runAsNonRoot": true }))
                .set("containers/1/image", BUSYBOX.replace(":1", ":named")),
            2,
        ),
    ]
}
