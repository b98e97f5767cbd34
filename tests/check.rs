//! `nodelet check` says beforehand what the agent says afterwards: both real, on the same
//! directory.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use nix::mount::{MntFlags, umount2};
use nodelet::model::{FileVerdict, SourceView};
use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::symlink, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

const BINARY: &str = env!("CARGO_BIN_EXE_nodelet");
const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: main, image: a{more}}}\n"
    )
}

fn after(name: &str, names: &str) -> String {
    let annotations = format!("name: {name}, annotations: {{nodelet.dev/after: '{names}'}}");
    pod(name, "").replace(&format!("name: {name}"), &annotations)
}

fn object(kind: &str, name: &str) -> String {
    format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n")
}

/// Every kind of thing that lies about in such directories.
fn fill(dir: &Path) {
    let write = |name: &str, text: &[u8]| fs::write(dir.join(name), text).unwrap();
    write("a.yaml", pod("a", "").as_bytes());
    write("a.json", br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[{"name":"main","image":"a"}]}}"#);
    write("b-same-name.yaml", pod("a", ", tty: true").as_bytes());
    write("bad.yaml", pod("bad", ", imagee: b, livenessProbe: {}").as_bytes());
    write("broken.yaml", b"kind: [Pod\n  - : {");
    write("empty.yaml", b"# nothing\n");
    let (one, two, wrong) = (pod("one", ""), pod("two", ""), pod("Wrong", ""));
    write("several.yml", format!("{one}---\n{wrong}---\n{two}").as_bytes());
    write("list.yaml", b"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: l1}, spec: {containers: [{name: main, image: a}]}}\n- {apiVersion: v1, kind: Pod, metadata: {name: l2}, spec: {containers: [{name: main}]}}\n");
    write("no-items.yaml", b"apiVersion: v1\nkind: PodList\nitems: []\n");
    write(
        "warned.yaml",
        pod("warned", "").replace("spec:", "spec:\n  enableServiceLinks: true").as_bytes(),
    );
    write("no-order.yaml", after("lonely", "One,two").as_bytes());
    write("config.yaml", CONFIG.as_bytes());
    write(
        "objects.yaml",
        format!("{}---\n{}", object("ConfigMap", "web"), object("Secret", "db")).as_bytes(),
    );
    write("wrong-object.yaml", object("Secret", "Wrong").as_bytes());
    write("large.yaml", &vec![b'#'; (4 << 20) + 1]);
    for name in
        ["a.yaml~", ".a.yaml.swp", "#a.yaml#", "a.yaml.bak", "4913", "notes.txt", "a.yaml.dpkg-new"]
    {
        write(name, pod("skipped", "").as_bytes());
    }
    fs::create_dir(dir.join("sub.yaml")).unwrap();
    nix::unistd::mkfifo(&dir.join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("nowhere", dir.join("dangling.yaml")).unwrap();
    symlink("a.yaml", dir.join("zz-link.yaml")).unwrap();
}

/// The lines that `check` owes for what the agent published.
fn owed(view: &SourceView) -> Vec<String> {
    let mut lines = Vec::new();
    for file in &view.files {
        let location = &file.location;
        let mut line = |problem: &nodelet::model::Problem, what: &str| {
            let at = problem.position;
            let place =
                if at.line > 0 { format!(":{}:{}", at.line, at.column) } else { String::new() };
            let path =
                if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
            lines.push(format!("{location}{place}: {what}{path}{}", problem.message));
        };
        for verdict in &file.verdicts {
            match verdict {
                FileVerdict::Accepted { warnings, .. } | FileVerdict::Object { warnings, .. } => {
                    warnings.iter().for_each(|problem| line(problem, "warning: "));
                }
                FileVerdict::Rejected { problems, .. } => {
                    problems.iter().for_each(|problem| line(problem, ""));
                }
                FileVerdict::Skipped { .. } => {}
            }
        }
        for verdict in &file.verdicts {
            match verdict {
                FileVerdict::Accepted { key, .. } => {
                    lines.push(format!("{location}: ok: pod {key}"));
                }
                FileVerdict::Object { key, .. } => lines.push(format!("{location}: ok: {key}")),
                FileVerdict::Rejected { .. } => {}
                FileVerdict::Skipped { reason } => {
                    lines.push(format!("{location}: ignored: {reason}"));
                }
            }
        }
    }
    lines.sort();
    lines
}

/// What an agent says of its sources.
fn sources(socket: &Path) -> std::io::Result<Vec<SourceView>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: nodelet\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status: serde_json::Value = serde_json::from_str(body)?;
    Ok(serde_json::from_value(status["node"]["sources"].clone())?)
}

/// Killed at the end, however that comes; with its root directory, which it has made a mount.
struct Agent {
    child: Child,
    root: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        self.child.kill().ok();
        self.child.wait().ok();
        // As a user it has mounted nothing.
        umount2(&self.root, MntFlags::MNT_DETACH).ok();
    }
}

#[test]
fn check_says_what_the_agent_says() {
    let home = tempfile::tempdir().unwrap();
    let manifests = home.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fill(&manifests);
    let at = home.path().display();
    let config = home.path().join("config.yaml");
    // No runtime: manifests are read all the same.
    let text = format!(
        "{CONFIG}staticPodPath: {at}/manifests\npodLogsDir: {at}/logs\nhealthzPort: 0\noomScoreAdj: 0\n\
         cgroupsPerQOS: false\nenforceNodeAllocatable: []\ncontainerRuntimeEndpoint: unix://{at}/no.sock\n---\n\
         apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\nrunDir: {at}/run\ncontainerLogLinksDir: {at}/links\n"
    );
    fs::write(&config, text).unwrap();
    let log = fs::File::create(home.path().join("log")).unwrap();
    let mut run = Command::new(BINARY);
    run.args(["run", "--hostname-override=n1", "--config"]).arg(&config);
    let root = home.path().join("root");
    run.arg("--root-dir").arg(&root);
    let child = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let _agent = Agent { child, root };

    let check = Command::new(BINARY)
        .args(["check", "--hostname-override=n1"])
        .arg(&manifests)
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(1));
    let mut said: Vec<String> =
        String::from_utf8(check.stdout).unwrap().lines().map(str::to_owned).collect();
    said.sort();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for look in 0.. {
        let sources = sources(&home.path().join("run/nodelet.sock")).unwrap_or_default();
        let owed = sources.first().map(owed).unwrap_or_default();
        if owed == said && !said.is_empty() {
            break;
        }
        let log = fs::read_to_string(home.path().join("log")).unwrap();
        assert!(
            look < 400,
            "check said\n{}\nand the agent\n{}\n{log}",
            said.join("\n"),
            owed.join("\n")
        );
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    }
    for part in [
        "a.yaml: ok: pod default/a-n1",
        "b-same-name.yaml:1:1: metadata.name: Duplicate value: \"default/a-n1\"",
        "imagee: unknown field",
        "list.yaml: ok: pod default/l1-n1",
        "several.yml: ok: pod default/two-n1",
        "warned.yaml:5:3: warning: spec.enableServiceLinks: ",
        "no-order.yaml:3:59: metadata.annotations[nodelet.dev/after]: Invalid value: \"One\": a \
         lowercase RFC 1123 subdomain must",
        "notes.txt: ignored: not a *.yaml, *.yml or *.json file",
        "pipe.yaml: ignored: a named pipe",
        "dangling.yaml: a link to nothing",
        "large.yaml: cannot be read: larger than 4 MiB",
        "config.yaml:2:7: kind: ",
        "objects.yaml: ok: ConfigMap default/web",
        "objects.yaml:5:1: warning: every user of this machine can read this Secret",
        "objects.yaml: ok: Secret default/db",
        "wrong-object.yaml:3:18: metadata.name: Invalid value: \"Wrong\"",
    ] {
        assert!(said.iter().any(|line| line.contains(part)), "no {part:?} in\n{}", said.join("\n"));
    }
}

#[test]
fn check_names_objects_that_no_document_provides() {
    let home = tempfile::tempdir().unwrap();
    let (manifests, objects) = (home.path().join("manifests"), home.path().join("objects"));
    fs::create_dir(&manifests).unwrap();
    fs::create_dir(&objects).unwrap();
    let from = |name: &str, optional: bool| {
        format!("{{secretRef: {{name: {name}, optional: {optional}}}}}")
    };
    let all = [("here", false), ("there", false), ("nowhere", false), ("anywhere", true)];
    let all = all.map(|(name, optional)| from(name, optional)).join(", ");
    let web =
        format!("{}---\n{}", object("Secret", "here"), pod("web", &format!(", envFrom: [{all}]")));
    fs::write(manifests.join("web.yaml"), web).unwrap();
    fs::write(objects.join("there.yaml"), object("Secret", "there")).unwrap();
    let config = home.path().join("config.yaml");
    let own = "apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n";
    let text = format!("{CONFIG}---\n{own}configPath: {}\n", objects.display());
    fs::write(&config, text).unwrap();
    let said = |path: &Path| {
        let mut check = Command::new(BINARY);
        let check = check.args(["check", "--hostname-override=n1", "--config"]).arg(&config);
        let output = check.arg(path).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let missing = "spec.containers[0].envFrom[2].secretRef: Not found: \"Secret default/nowhere\": the pod \
                   waits until a document provides it\n";
    let at = manifests.display();
    let (code, text) = said(&manifests);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("{at}/web.yaml:5:1: {missing}")), "{text}");
    assert_eq!(text.matches("Not found").count(), 1, "{text}");
    // Of a single file it is not known what lies beside it.
    let (code, text) = said(&manifests.join("web.yaml"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("{at}/web.yaml:5:1: warning: {missing}")), "{text}");
    fs::write(objects.join("pod.yaml"), pod("misplaced", "")).unwrap();
    let (code, text) = said(&manifests.join("web.yaml"));
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("pod.yaml:1:1: kind: Forbidden: configPath is for ConfigMaps and Secrets")
    );
}

#[test]
fn check_reports_pods_that_would_wait_for_ever() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("web.yaml"), after("web", "db,cache")).unwrap();
    fs::write(home.path().join("db.yaml"), pod("db", "")).unwrap();
    let said = |path: &Path| {
        let mut check = Command::new(BINARY);
        let output = check.args(["check", "--hostname-override=n1"]).arg(path).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let missing = "metadata.annotations[nodelet.dev/after]: Not found: \"cache\": the pod waits until \
                   a manifest has this name\n";
    let (code, text) = said(home.path());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("web.yaml:1:1: {missing}")), "{text}");
    assert_eq!(text.matches("Not found").count(), 1, "{text}");
    // Of a single file it is not known what lies beside it.
    let (code, text) = said(&home.path().join("web.yaml"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("web.yaml:1:1: warning: {missing}")), "{text}");
    fs::write(home.path().join("cache.yaml"), after("cache", "web")).unwrap();
    let (code, text) = said(home.path());
    assert_eq!(code, Some(1), "{text}");
    let cycle = "metadata.annotations[nodelet.dev/after]: the pods wait for each other, so none of \
                 them starts: web -> cache -> web";
    assert!(text.contains(&format!("web.yaml:1:1: {cycle}")), "{text}");
    assert!(text.contains("cache -> web -> cache"), "{text}");
    let accepted: Vec<&str> = text.lines().filter(|line| line.contains(": ok: ")).collect();
    assert!(matches!(accepted[..], [db] if db.contains("default/db-n1")), "{text}");
}

#[test]
fn check_accepts_the_examples() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("static-pods/edge");
    let run = Command::new(BINARY).arg("check").arg(&examples).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
    assert_eq!(
        said.matches(": ok: pod ").count(),
        fs::read_dir(examples).unwrap().count(),
        "{said}"
    );
}

/// The control plane that kubeadm makes, as it makes it: accepted, with a warning of the empty
/// status that kubeadm writes and nothing else.
#[test]
fn check_accepts_the_manifests_of_kubeadm() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests/good");
    let parts = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let mut check = Command::new(BINARY);
    check.args(["check", "--hostname-override=n1"]);
    check.args(parts.map(|part| fixtures.join(format!("kubeadm-{part}.yaml"))));
    let output = check.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let rest: Vec<&str> = said.lines().filter(|l| !l.contains(": warning: status: ")).collect();
    let ends = parts.map(|part| format!("kubeadm-{part}.yaml: ok: pod kube-system/{part}-n1"));
    assert_eq!(rest.len(), parts.len(), "{said}");
    assert!(rest.iter().zip(&ends).all(|(line, end)| line.ends_with(end)), "{said}");
}

/// A pipe can be read only once, and what it holds is found out by reading it.
#[test]
fn a_configuration_comes_through_a_pipe_too() {
    let check = |text: &str| {
        let mut check = Command::new(BINARY)
            .args(["check", "/dev/stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = check.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(check(CONFIG), (Some(0), "/dev/stdin: ok\n".to_owned()));
    let providers = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
        - {name: a, matchImages: [a.example], defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1}\n";
    assert_eq!(check(providers), (Some(0), "/dev/stdin: ok\n".to_owned()));
    let (code, said) = check(&format!("{CONFIG}maxPods: -1\n"));
    assert!(code == Some(1) && said.starts_with("/dev/stdin:3:"), "{code:?} {said}");
}
