//! What a person sees and types.

use crate::support::{
    agent::{Settings, binary},
    manifest::{FOREVER, Pod},
    poll_until,
    world::{Kind, SOON, World},
};
use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
};

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn status_shows_pods_manifests_and_reasons(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    let broken = Pod::running("broken").set("contaners", serde_json::json!([]));
    world.write("broken.yaml", &broken.text());
    world.wait("all is reported", |status| {
        status.runs("web")
            && status.waiting_reason("crash", "main") == "CrashLoopBackOff"
            && status.rejected("broken.yaml")
    });
    let expected =
        ["web-node1", "Running", "CrashLoopBackOff", "broken.yaml", "containers", "containerd"];
    let table = || {
        let output = world.agent.cli(&["status"]);
        assert!(output.status.success(), "{output:?}");
        printed(&output)
    };
    // The back-off comes and goes.
    let whole = |table: &String| expected.iter().all(|text| table.contains(text));
    world.wait_until("the table shows it", table, whole);
    let one = printed(&world.agent.cli(&["status", "web"]));
    for expected in ["web-node1", "main", "Started", "nodelet.test/busybox:1"] {
        assert!(one.contains(expected), "no {expected} in\n{one}");
    }
    let json = printed(&world.agent.cli(&["status", "-o", "json"]));
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    let items = list["items"].as_array().unwrap();
    let web = items.iter().find(|item| item["metadata"]["name"] == "web-node1").unwrap();
    assert_eq!((&web["kind"], &web["status"]["phase"]), (&"Pod".into(), &"Running".into()));
    world.finish();
}

/// A command that goes on, with what it prints in files.
struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    fn start(world: &World, name: &str, arguments: &[&str]) -> Self {
        let path = |end: &str| world.slot.dir().join(format!("{name}.{end}"));
        let (out, err) = (path("out"), path("err"));
        let child = Command::new(binary())
            .args(arguments)
            .arg("--run-dir")
            .arg(world.agent.run_dir())
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Self { child, out, err }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    /// Waits until it ends by itself; gives its exit status and its standard error.
    fn ended(&mut self) -> (ExitStatus, String) {
        let ended = poll_until(SOON, || self.child.try_wait().unwrap(), Option::is_some);
        (ended.unwrap().unwrap(), fs::read_to_string(&self.err).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, or a check has failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn events_are_listed_and_followed(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let list = || printed(&world.agent.cli(&["events"]));
    let shows = |text: &String| text.contains("Started") && text.contains("pod/web-node1");
    world.wait_until("the events are listed", list, shows);
    let json = printed(&world.agent.cli(&["events", "web", "-o", "json"]));
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&"EventList".into(), &"Event".into()));

    let mut all = Running::start(&world, "all", &["events", "-f"]);
    let web = Running::start(&world, "web", &["events", "-f", "web", "-o", "json"]);
    world.wait_until("the table is printed", || all.printed(), |text| shows(text));
    world.wait_until("objects are printed", || web.printed(), |text| text.contains("Started"));
    assert!(all.printed().starts_with("NAMESPACE   LAST SEEN "), "{}", all.printed());
    world.drop_pod(&Pod::running("later"));
    world.remove("web.yaml");
    world.wait_until(
        "events follow",
        || all.printed(),
        |text| {
            let of = |reason: &str, object: &str| {
                text.lines().any(|line| line.contains(reason) && line.contains(object))
            };
            of(" Started ", " pod/later-node1 ") && of(" Killing ", " pod/web-node1 ")
        },
    );
    world.wait_until("objects follow", || web.printed(), |text| text.contains("\"Killing\""));
    assert!(!web.printed().contains("later"), "{}", web.printed());
    world.agent.terminate();
    let (status, said) = all.ended();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("ended the connection: it has stopped"), "{said}");
    world.agent.start();
    world.wait("the agent answers again", |_| true);
    world.finish();
}

pub fn status_is_watched(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let mut watch = Running::start(&world, "watch", &["status", "-w"]);
    let rows = |name: &str, text: &str| -> Vec<String> {
        let of = |line: &&str| line.contains(name) && line.contains(text);
        watch.printed().lines().filter(of).map(str::to_owned).collect()
    };
    let some = |rows: &Vec<String>| !rows.is_empty();
    world.wait_until("the table is printed", || rows("web-node1", " Running "), some);
    assert!(watch.printed().starts_with("NAMESPACE   NAME "), "{}", watch.printed());
    world.drop_pod(&Pod::running("later"));
    world.wait_until("a new pod has rows", || rows("later-node1", " Running "), some);
    let broken = Pod::running("web").set("contaners", serde_json::json!([]));
    world.write("web.yaml", &broken.text());
    let last_good = "runs its last good revision";
    world.wait_until("the invalid manifest is told", || rows("web-node1", last_good), some);
    world.remove("later.yaml");
    world.wait_until("the removal is told", || rows("later-node1", " Gone "), some);
    let all = watch.printed();
    let web: Vec<&str> = all.lines().filter(|line| line.contains("web-node1")).collect();
    assert!(web.windows(2).all(|two| two[0] != two[1]), "a row without a change: {all}");
    world.agent.terminate();
    let (status, said) = watch.ended();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("ended the connection: it has stopped"), "{said}");
    let output = world.agent.cli(&["status", "-w", "-o", "json"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    world.agent.start();
    world.wait("the agent answers again", |_| true);
    world.finish();
}

pub fn logs_are_printed(kind: Kind) {
    let world = World::start(kind);
    let script = format!("echo first line; echo second line; {FOREVER}");
    world.drop_pod(&Pod::with_main("web", &script));
    world.wait_running("web");
    let look = || printed(&world.agent.cli(&["logs", "web"]));
    world.wait_until("the log is printed", look, |log| log == "first line\nsecond line\n");
    let last = printed(&world.agent.cli(&["logs", "web", "-c", "main", "--tail", "1"]));
    assert_eq!(last, "second line\n");
    world.kill_container(&world.running_id("web", "main"));
    world.wait("it is restarted", |status| status.restarts("web", "main") == 1);
    assert_eq!(printed(&world.agent.cli(&["logs", "web", "-p"])), "first line\nsecond line\n");
    world.finish();
}

pub fn commands_say_when_no_agent_runs(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let output = world.agent.cli(&["status"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not running") || said.contains("isn't running"), "{said}");
}
