//! Pods that attack a node with cgroup v2 and the systemd driver: a fork bomb, cgroups nested
//! deeper than a path can be long, thousands of deep directories, a hosts file that grows beyond
//! the pod's limit. `tests/attacks/` has more attacks; they run on the host's cgroups.

use crate::{
    machine::SOON,
    node::{Driver, MANIFESTS, Node, Options, Status},
    support::manifest::Pod,
};
use serde_json::{Value, json};
use std::time::Duration;

/// The most processes that a pod may have.
const PIDS: u64 = 60;
/// Forks for ever. The processes only wait.
const BOMB: &str = "(mkfifo /wait; while :; do read x </wait & done)";
/// Makes a chain of cgroups below the pod's cgroup that is deeper than a path can be long. The last
/// cgroup holds a process of the container and is frozen.
const NEST: &str = "cd /sys/fs/cgroup$(sed 's/^0:://; s,/[^/]*$,,' /proc/self/cgroup); \
    name=$(printf %0200d 0); n=0; while [ $n -lt 30 ]; do mkdir $name; cd ./$name; n=$((n+1)); done; \
    sleep 31415926 & echo $! >cgroup.procs; echo 1 >cgroup.freeze";
/// Makes 11,000 directories at depth 64 of an emptyDir.
const DEEP: &str = "(cd /scratch; n=0; while [ $n -lt 63 ]; do mkdir a; cd a; n=$((n+1)); done; \
    seq 11000 | xargs mkdir; touch /scratch/done)";
/// Writes 30 MiB to a file that the agent provides.
const GROW_HOSTS: &str = "dd if=/dev/zero bs=1M count=30 of=/etc/hosts";

/// Asks for the status every second and reads the agent's memory, until `/run/watched` exists. Each
/// line of `/run/seen` has the milliseconds until the answer, the KiB of RssAnon and the first line
/// of the answer.
const WATCH: &str = r"cat >/run/watch <<'END-OF-WATCH'
until [ -e /run/watched ]; do
  begun=$(date +%s%N)
  answer=$(printf 'GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' |
    timeout 60 socat -t 60 - UNIX-CONNECT:/run/nodelet/nodelet.sock,shut-none | sed -n '1s/\r$//p')
  took=$((($(date +%s%N) - begun) / 1000000))
  anon=$(sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$1/status)
  echo $took ${anon:-0} $answer >>/run/seen
  sleep 1
done
END-OF-WATCH
systemd-run --quiet --unit watch bash /run/watch";
/// The longest that an answer may take. An emulated machine on a busy host needs 9 s at times.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// The most anonymous memory that the agent may ever have.
const MEMORY_CEILING_KIB: u64 = 64 * 1024;

/// One machine, all attacks together.
pub fn pods_that_attack_a_node_with_cgroup_v2() {
    let kubelet = format!("podPidsLimit: {PIDS}");
    let node = Node::start(&Options { driver: Driver::Systemd, kubelet, ..Options::default() });
    node.drop_pods(&[Pod::running("innocent")]);
    node.wait_running(&["innocent"]);
    let innocent = node.running();
    let agent = node.agent_pid();
    node.sh(&format!("{WATCH} {agent}"));
    node.note("the innocent pod runs");

    node.drop_pods(&[attacker("bomb", BOMB), nest(), hosts()]);
    node.wait_for(SOON * 4, "a pod that grows its hosts file is evicted", evicted);
    node.note("a pod that grows its hosts file is evicted");
    let both = |status: &Status| status.runs("bomb") && status.runs("nest");
    let status = node.wait_for(SOON * 2, "the others run", both);
    let bomb = pod_cgroup(&status, "bomb");
    let tasks = || node.sh(&format!("cat {bomb}/pids.current"));
    node.wait_until("the fork bomb finds its limit", tasks, |tasks| {
        (PIDS - 5..=PIDS).contains(&tasks.trim().parse().unwrap())
    });
    let nest = pod_cgroup(&status, "nest");
    let depth = || node.sh(&format!("find {nest} -type d | awk 'length > 4096' | wc -l"));
    node.wait_until("cgroups are nested deeper than a path", depth, |count| count.trim() != "0");
    node.wait_until("a process lives there", || strays(&node), |count| *count == 1);
    let scratch = scratch(&status);
    let done = || node.run(&format!("ls {scratch}/done"));
    node.wait_until("11,000 directories are made", done, |answer| answer.code == 0);
    node.note("a fork bomb has found its limit, cgroups and directories are nested");

    let attackers = ["bomb", "nest", "hosts"];
    let files = attackers.map(|name| format!("{name}.yaml")).join(" ");
    node.sh(&format!("cd {MANIFESTS} && rm {files}"));
    node.drop_pods(&[Pod::running("late")]);
    node.wait_for(SOON * 4, "the attackers are gone, and another pod runs", |status| {
        attackers.iter().all(|name| status.pod(name).is_none()) && status.runs("late")
    });
    node.wait_until("nothing of them is left", || strays(&node), |count| *count == 0);
    node.sh(&format!("[ ! -e {nest} ] && [ ! -e {bomb} ] && [ ! -e {scratch} ]"));
    node.note("the attackers are gone");

    let mut running = node.running();
    running.remove("late/main");
    assert_eq!(running, innocent, "the innocent pod is untouched");
    assert_eq!(node.agent_pid(), agent, "the agent was never restarted");
    check_what_was_seen(&node);
    node.finish();
}

/// A pod that does something and stays. A network of its own would cost the machine seconds.
fn attacker(name: &str, does: &str) -> Pod {
    Pod::with_main(name, &format!("{does}; sleep 100000")).set("hostNetwork", true)
}

/// It may make cgroups. It is in the machine's process namespace, so its other processes do not end
/// with the first one.
fn nest() -> Pod {
    attacker("nest", &format!("{DEEP}; {NEST}"))
        .set("hostPID", true)
        .set("containers/0/securityContext", json!({ "privileged": true }))
        .set("volumes", json!([{ "name": "scratch", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "scratch", "mountPath": "/scratch" }]))
}

/// It may store 10 MiB.
fn hosts() -> Pod {
    let resources = json!({ "limits": { "ephemeral-storage": "10Mi" } });
    attacker("hosts", GROW_HOSTS).set("containers/0/resources", resources)
}

/// Whether the pod with a limit was evicted for it. It may have come back since.
fn evicted(status: &Status) -> bool {
    let told = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["reason"] == "Evicted"
            && message.contains("exceeds the total limit of containers 10Mi")
    };
    status.node["events"].as_array().is_some_and(|events| events.iter().any(told))
}

/// Where the emptyDir of [`nest`] is on the machine.
fn scratch(status: &Status) -> String {
    let uid = uid(status, "nest");
    format!("/var/lib/nodelet/pods/{uid}/volumes/kubernetes.io~empty-dir/scratch")
}

fn uid<'a>(status: &'a Status, pod: &str) -> &'a str {
    status.pod(pod).unwrap().metadata.uid.as_deref().unwrap()
}

/// The slice of a pod that asks for no resources.
fn pod_cgroup(status: &Status, pod: &str) -> String {
    let uid = uid(status, pod).replace('-', "_");
    format!(
        "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice"
    )
}

/// How many processes of [`NEST`] there are.
fn strays(node: &Node) -> usize {
    node.run("pgrep -f '^sleep 31415926$'").output.lines().count()
}

/// Every request was answered in time, and the agent never had too much memory.
#[track_caller]
fn check_what_was_seen(node: &Node) {
    let seen = node.sh("touch /run/watched; cat /run/seen");
    let (mut longest, mut most) = (0, 0);
    for line in seen.lines() {
        let mut fields = line.splitn(3, ' ');
        let mut number = || fields.next().unwrap().parse::<u64>().unwrap();
        (longest, most) = (longest.max(number()), most.max(number()));
        assert_eq!(fields.next(), Some("HTTP/1.1 200 OK"), "{seen}");
    }
    let requests = seen.lines().count();
    node.note(&format!("{requests} answers within {longest} ms; at most {most} KiB of RssAnon"));
    assert!(requests > 10, "{seen}");
    assert!(Duration::from_millis(longest) < LONGEST_ANSWER, "{seen}");
    assert!((1..MEMORY_CEILING_KIB).contains(&most), "{seen}");
}
