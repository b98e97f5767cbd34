use super::*;
use crate::{
    cli::args::{AgentArgs, NamespaceArgs},
    model::NodeView,
};
use serde_json::json;
use std::{fs, future::pending, time::Duration};
use tempfile::TempDir;

/// A directory of logs.
struct Logs {
    dir: TempDir,
}

fn line(second: u32, text: &str) -> String {
    format!("2026-11-20T10:00:{second:02}Z stdout F {text}\n")
}

impl Logs {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn append(&self, path: &str, text: &str) {
        let mut file = fs::OpenOptions::new().append(true).open(self.path(path)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// The answer of an agent that runs these pods, `(name, uid, containers)`.
    fn agent(&self, pods: &[(&str, &str, &[&str])]) -> Result<StatusDocument, ClientError> {
        let pods = pods.iter().map(|(name, uid, containers)| {
            let containers: Vec<_> =
                containers.iter().map(|name| json!({"name": name, "image": "i"})).collect();
            let spec = json!({"containers": containers,
                              "initContainers": [{"name": "setup", "image": "i"}],
                              "ephemeralContainers": [{"name": "debug", "image": "i"}]});
            serde_json::from_value(json!({
                "key": {"namespace": "default", "name": name}, "uid": uid,
                "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec},
                "status": {}, "origin": null, "terminating": false, "hung": null, "waiting": null,
            }))
            .unwrap()
        });
        Ok(StatusDocument {
            node: NodeView { name: "n1".into(), ..NodeView::default() },
            pods: pods.collect(),
            pod_logs_dir: self.dir.path().to_owned(),
            ..StatusDocument::default()
        })
    }

    async fn printed(
        &self,
        args: &LogsArgs,
        agent: &Result<StatusDocument, ClientError>,
    ) -> Result<String, LogsError> {
        let target = locate(args, agent)?;
        let since = args
            .since
            .map(|since| "2026-11-20T10:01:00Z".parse::<jiff::Timestamp>().unwrap() - since);
        let mut out = Vec::new();
        let mut printer = Printer::new(
            &mut out,
            logs::Wanted { since, timestamps: args.timestamps, ..logs::Wanted::default() },
        );
        print(args, &target, &mut printer).await?;
        drop(printer);
        Ok(String::from_utf8(out).unwrap())
    }
}

fn args(pod: &str) -> LogsArgs {
    LogsArgs {
        pod: pod.to_owned(),
        namespace: NamespaceArgs { namespace: None },
        container: None,
        follow: false,
        previous: false,
        tail: None,
        since: None,
        timestamps: false,
        pod_logs_dir: None,
        agent: AgentArgs { run_dir: "/nowhere".into() },
    }
}

#[tokio::test]
async fn prints_rotated_files_before_the_current_one() {
    let logs = Logs::new();
    let agent = logs.agent(&[("web-n1", "u1", &["web"])]);
    logs.write("default_web-n1_u1/web/0.log.20261120-100001", &line(1, "one"));
    logs.write("default_web-n1_u1/web/0.log.20261120-100002", &line(2, "two"));
    logs.write("default_web-n1_u1/web/0.log.20261120-090000.gz", "not text");
    logs.write("default_web-n1_u1/web/0.log.20261120-090001.gz.tmp", "not text");
    logs.write("default_web-n1_u1/web/0.log", &(line(3, "three") + &line(4, "four")));
    let all = logs.printed(&args("web"), &agent).await.unwrap();
    assert_eq!(all, "one\ntwo\nthree\nfour\n");
    for (tail, expected) in [
        (0, ""),
        (1, "four\n"),
        (2, "three\nfour\n"),
        (3, "two\nthree\nfour\n"),
        (9, "one\ntwo\nthree\nfour\n"),
    ] {
        let arguments = LogsArgs { tail: Some(tail), ..args("web") };
        assert_eq!(logs.printed(&arguments, &agent).await.unwrap(), expected, "{tail}");
    }
    let arguments = LogsArgs {
        since: Some(Duration::from_secs(57)),
        timestamps: true,
        ..args("default/web-n1")
    };
    assert_eq!(
        logs.printed(&arguments, &agent).await.unwrap(),
        "2026-11-20T10:00:03.000000000Z three\n2026-11-20T10:00:04.000000000Z four\n"
    );
}

#[tokio::test]
async fn chooses_run_and_container() {
    let logs = Logs::new();
    let agent = logs.agent(&[("web-n1", "u2", &["web", "side"])]);
    logs.write("default_web-n1_u1/web/9.log", &line(1, "an older pod"));
    logs.write("default_web-n1_u2/web/0.log", &line(1, "first"));
    logs.write("default_web-n1_u2/web/2.log", &line(2, "second"));
    logs.write("default_web-n1_u2/web/10.log", &line(3, "third"));
    logs.write("default_web-n1_u2/setup/0.log", &line(1, "setup"));
    logs.write("default_web-n1_u2/debug/0.log", &line(1, "debug"));
    let say = async |arguments: LogsArgs| match logs.printed(&arguments, &agent).await {
        Ok(text) => text,
        Err(error) => error.to_string(),
    };
    assert_eq!(say(args("web")).await, "third\n");
    assert_eq!(say(LogsArgs { previous: true, ..args("web") }).await, "second\n");
    let container = |name: &str| LogsArgs { container: Some(name.to_owned()), ..args("web") };
    assert_eq!(say(container("setup")).await, "setup\n");
    assert_eq!(say(container("debug")).await, "debug\n");
    assert_eq!(
        say(container("side")).await,
        "container \"side\" in pod \"default/web-n1\" has written no log yet"
    );
    assert_eq!(
        say(container("db")).await,
        "container \"db\" not found in pod \"default/web-n1\"; it has web, side, setup (init), debug (ephemeral)"
    );
    let previous = LogsArgs { previous: true, ..container("setup") };
    assert_eq!(
        say(previous).await,
        "previous terminated container \"setup\" in pod \"default/web-n1\" not found"
    );
    assert_eq!(say(args("mail")).await, "no pod mail; there are default/web-n1");
    let target = locate(&args("web"), &agent).unwrap();
    let note = "Container web is shown; the pod has web, side, setup (init), debug (ephemeral).";
    assert_eq!(target.note.as_deref(), Some(note));
}

#[tokio::test]
async fn between_two_runs_the_newest_is_the_previous_one() {
    let logs = Logs::new();
    let mut agent = logs.agent(&[("web-n1", "u1", &["web"])]).unwrap();
    logs.write("default_web-n1_u1/web/0.log", &line(1, "first"));
    logs.write("default_web-n1_u1/web/1.log", &line(2, "second"));
    let status = json!({"containerStatuses": [{"name": "web", "image": "i", "imageID": "", "ready": false,
        "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": {"exitCode": 1}}}]});
    agent.pods[0].status = serde_json::from_value(status).unwrap();
    let agent = Ok(agent);
    let previous = LogsArgs { previous: true, ..args("web") };
    assert_eq!(logs.printed(&previous, &agent).await.unwrap(), "second\n");
    fs::remove_dir_all(logs.path("default_web-n1_u1")).unwrap();
    let error = logs.printed(&args("web"), &agent).await.unwrap_err().to_string();
    assert!(
        error.ends_with("no log yet: it is waiting to start: CrashLoopBackOff: back-off 10s"),
        "{error}"
    );
}

#[tokio::test]
async fn while_the_next_run_is_made_the_one_before_it_is_the_previous_one() {
    let logs = Logs::new();
    let mut agent = logs.agent(&[("web-n1", "u1", &["web"])]).unwrap();
    let status = json!({"containerStatuses": [{"name": "web", "image": "i", "imageID": "", "ready": false,
        "restartCount": 1, "state": {"waiting": {"reason": "ContainerCreating"}}, "containerID": "containerd://c2",
        "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://c1"}}}]});
    agent.pods[0].status = serde_json::from_value(status).unwrap();
    let agent = Ok(agent);
    let previous = LogsArgs { previous: true, ..args("web") };
    logs.write("default_web-n1_u1/web/0.log", &line(1, "first"));
    assert_eq!(logs.printed(&previous, &agent).await.unwrap(), "first\n");
    // The runtime makes the log when it starts the container.
    logs.write("default_web-n1_u1/web/1.log", "");
    assert_eq!(logs.printed(&previous, &agent).await.unwrap(), "first\n");
}

#[tokio::test]
async fn the_directory_can_be_named() {
    let (logs, other) = (Logs::new(), Logs::new());
    let agent = logs.agent(&[("web-n1", "u1", &["web"])]);
    logs.write("default_web-n1_u1/web/0.log", &line(1, "mine"));
    other.write("default_web-n9_u9/web/0.log", &line(1, "another's"));
    let none = Err(ClientError::TimedOut { socket: "/nowhere".into(), deadline: Duration::ZERO });
    let named = |logs: &Logs| LogsArgs { pod_logs_dir: Some(logs.path("")), ..args("web") };
    assert_eq!(logs.printed(&named(&logs), &none).await.unwrap(), "mine\n");
    assert_eq!(logs.printed(&named(&logs), &agent).await.unwrap(), "mine\n");
    assert_eq!(logs.printed(&named(&other), &agent).await.unwrap(), "another's\n");
    let missing = LogsArgs { pod: "db".to_owned(), ..named(&other) };
    let error = logs.printed(&missing, &none).await.unwrap_err().to_string();
    assert_eq!(error, "no pod db; there are default/web-n9");
}

#[test]
fn without_an_agent_the_newest_incarnation_is_found() {
    let there = Logs::new();
    let wanted = |pod: &str| Wanted::new(pod, None).unwrap();
    there.write("default_web-n1_u1/web/0.log", "");
    there.write("shop_db-n1_u3/db/0.log", "");
    there.write("stray", "");
    let later = fs::metadata(there.path("default_web-n1_u1/web")).unwrap().modified().unwrap()
        + Duration::from_secs(5);
    there.write("default_web-n1_u2/web/0.log", "");
    fs::File::open(there.path("default_web-n1_u2")).unwrap().set_modified(later).unwrap();
    let found = logs::pods(there.dir.path()).unwrap();
    let key = alone(&wanted("web"), &found).unwrap();
    assert_eq!(key.to_string(), "default/web-n1");
    let path = incarnation(&key, None, &found, there.dir.path());
    assert_eq!(path, there.path("default_web-n1_u2"));
    assert_eq!(alone(&wanted("shop/db"), &found).unwrap().to_string(), "shop/db-n1");
    assert!(matches!(alone(&wanted("x"), &found), Err(SelectError::NotFound { .. })));
    there.write("default_web-db-n1_u9/db/0.log", "");
    let found = logs::pods(there.dir.path()).unwrap();
    assert!(matches!(alone(&wanted("web"), &found), Err(SelectError::Ambiguous { .. })));
    assert!(alone(&wanted("web-n1"), &found).is_ok());
    assert!(logs::pods(&there.path("missing")).unwrap().is_empty());
}

/// What a follower has printed so far, seen from outside.
#[derive(Clone, Default)]
struct Seen(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seen {
    async fn wait_for(&self, text: &str) {
        let reached = async {
            while *self.0.borrow() != text.as_bytes() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(10), reached).await;
        assert!(reached.is_ok(), "{}", String::from_utf8_lossy(&self.0.borrow()));
    }
}

#[tokio::test]
async fn follows_across_rotations_and_restarts_until_the_pod_is_gone() {
    let logs = Logs::new();
    let agent = logs.agent(&[("web-n1", "u1", &["web"])]);
    let file = "default_web-n1_u1/web/0.log";
    logs.write(file, &line(1, "one"));
    let arguments = LogsArgs { follow: true, tail: Some(1), ..args("web") };
    let target = locate(&arguments, &agent).unwrap();
    let seen = Seen::default();
    let mut printer = Printer::new(seen.clone(), logs::Wanted::default());
    let following = async {
        print(&arguments, &target, &mut printer).await.unwrap();
    };
    let story = async {
        seen.wait_for("one\n").await;
        logs.append(file, "2026-11-20T10:00:02Z stdout F tw");
        logs.append(file, "o\n");
        seen.wait_for("one\ntwo\n").await;
        logs.append(file, &line(3, "before the rotation"));
        fs::rename(logs.path(file), logs.path("default_web-n1_u1/web/0.log.20261120-100003"))
            .unwrap();
        logs.append("default_web-n1_u1/web/0.log.20261120-100003", &line(3, "late"));
        logs.write(file, &line(4, "after"));
        seen.wait_for("one\ntwo\nbefore the rotation\nlate\nafter\n").await;
        // Several rotations between two looks, of which one was compressed already.
        let directory = logs.path("default_web-n1_u1/web");
        fs::rename(logs.path(file), directory.join("0.log.20261120-100004")).unwrap();
        fs::write(directory.join("0.log.20261120-100004.500000"), line(4, "quickly")).unwrap();
        fs::write(directory.join("0.log.20261120-100004.gz"), "not text").unwrap();
        fs::remove_file(directory.join("0.log.20261120-100004")).unwrap();
        logs.write(file, &line(5, "rotated"));
        seen.wait_for("one\ntwo\nbefore the rotation\nlate\nafter\nquickly\nrotated\n").await;
        logs.append(file, &line(5, "last words"));
        logs.write("default_web-n1_u1/web/1.log", &line(6, "restarted"));
        let all =
            "one\ntwo\nbefore the rotation\nlate\nafter\nquickly\nrotated\nlast words\nrestarted\n";
        seen.wait_for(all).await;
        fs::remove_dir_all(logs.path("default_web-n1_u1")).unwrap();
        pending::<()>().await;
    };
    tokio::select! {
        () = following => {}
        () = story => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("follows for ever"),
    }
}
