//! The program's command line, as a person meets it: what it prints and how it exits.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: web, image: nginx}\n";

fn nodelet(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodelet"))
        .args(args)
        .env_remove("JOURNAL_STREAM")
        .env_remove("NOTIFY_SOCKET")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit code, standard output, standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let output = nodelet(args);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name)
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file and gives its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

#[test]
fn the_version_is_told() {
    let version = format!("nodelet {}\n", env!("CARGO_PKG_VERSION"));
    for args in [["--version"], ["version"], ["-V"]] {
        assert_eq!(run(&args), (0, version.clone(), String::new()), "{args:?}");
    }
}

#[test]
fn help_is_for_a_newcomer() {
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for part in ["Examples:", "nodelet check web.yaml", "Exit codes:", "/etc/nodelet/static-pods"] {
        assert!(help.contains(part), "no {part:?} in:\n{help}");
    }
    let (code, help, _) = run(&["run", "--help"]);
    assert_eq!(code, 0);
    for part in ["--config-dir <DIR>", "--registry-burst <N>", "[default: 10]", "-v, --v <N>"] {
        assert!(help.contains(part), "no {part:?} in:\n{help}");
    }
    for flag in ["--contention-profiling", "--tls-curve-preferences", "--runtime-cgroups"] {
        assert!(!help.contains(flag), "flags that do nothing are not advertised");
    }
}

#[test]
fn completions_and_manual_come_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&["completions", shell]);
        assert_eq!(code, 0);
        assert!(script.contains("registry-burst") && script.contains("forget"), "{shell}");
    }
    let (code, page, _) = run(&["man"]);
    assert!(code == 0 && page.starts_with(".ie") && page.contains("nodelet"), "{page}");
    let dir = Dir::new();
    assert_eq!(run(&["man", dir.path()]).0, 0);
    for page in ["nodelet.1", "nodelet-run.1", "nodelet-check.1", "nodelet-status.1"] {
        assert!(dir.0.path().join(page).is_file(), "{page}");
    }
}

#[test]
fn a_wrong_command_line_exits_2_and_names_what_was_meant() {
    for (args, part) in [
        (&["--registry-bursts=5"][..], "--registry-burst"),
        (&["--nonsense"], "unexpected argument '--nonsense'"),
        (&["sttaus"], "status"),
        (&["run", "extra"], "unexpected argument 'extra'"),
        (&["--fail-swap-on", "false"], "unexpected argument 'false'"),
        (&["check"], "PATH"),
        (
            &["--bootstrap_kubeconfig=/x", "--kubeconfig=/nonexistent"],
            "--bootstrap-kubeconfig: neither /nonexistent nor /x exists",
        ),
        (&["--bootstrap-kubeconfig", "/x"], "--bootstrap-kubeconfig: needs --kubeconfig as well"),
        (&["--network-plugin=cni"], "--network-plugin: was removed from the kubelet"),
        (&["--registry_burst=many"], "--registry-burst: Invalid value: \"many\": must be a whole"),
        (&["--config=/nonexistent/x.yaml"], "/nonexistent/x.yaml: cannot be read: No such file"),
        (&["--config-dir=/nonexistent"], "/nonexistent: cannot be read: No such file"),
        (
            &["port-forward", "web", "http"],
            "wrong command line: \"http\" is no port: expected PORT",
        ),
        (&["logs", "a/b/c"], "\"a/b/c\" is not the name of a pod: expected NAME"),
        (&["status", "a/b/c"], "\"a/b/c\" is not the name of a pod: expected NAME"),
        (&["events", "a/b/c"], "\"a/b/c\" is not the name of a pod: expected NAME"),
        (&["forget", "a/b/c"], "\"a/b/c\" is not the name of a pod: expected NAME"),
        (&["restart", "a/b/c"], "\"a/b/c\" is not the name of a pod: expected NAME"),
        (&["exec", "-n", "c", "a/b", "--", "sh"], "\"a/b\" has the namespace \"a\", but"),
        (&["cp", "./here", "./there"], "one of SRC and DST must be in a pod"),
        (&["cp", "web:", "./there"], "\"web:\" has no path after the colon"),
    ] {
        let (code, _, error) = run(args);
        assert!(code == 2 && error.contains(part), "{args:?}: {code}\n{error}");
    }
}

#[test]
fn help_whose_reader_has_gone_is_no_failure() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodelet"));
        let output = command.args(args).stdout(writer).output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr)),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_all_mistakes() {
    let dir = Dir::new();
    let config =
        dir.file("config.yaml", &format!("{HEAD}registryBurst: x\nhealthzPort: -1\nmaxPod: 3\n"));
    let drop_in = dir.file("conf.d/10-a.conf", &format!("{HEAD}syncFrequency: soon\n"));
    dir.file("conf.d/20-b.conf.bak", "nonsense: [");
    let empty = dir.file("conf.d/sub/x.conf", "");
    let conf_d = format!("{}/conf.d", dir.path());
    let (code, out, error) = run(&["--config", &config, "--config-dir", &conf_d, "--node-ip=x"]);
    assert_eq!((code, out), (2, String::new()));
    assert_eq!(
        error,
        format!(
            "nodelet: the configuration is wrong, nothing was started:
  {config}: line 3, column 16: registryBurst: Invalid value: \"x\": must be a whole number
  {config}: line 4, column 14: healthzPort: Invalid value: -1: must be between 0 and 65535
  {drop_in}: line 3, column 16: syncFrequency: Invalid value: \"soon\": must be a duration with units, like 90s, 1m30s or 100ms
  {empty}: the file is empty
  --node-ip: Invalid value: \"x\": must be an IP address
  {config}: line 5, column 1: maxPod: unknown field, did you mean \"maxPods\"?
"
        )
    );
}

#[test]
fn check_reads_configuration_files() {
    let kubeadm = fixture("kubeadm.yaml");
    let kubeadm = kubeadm.to_str().unwrap();
    let (code, out, error) = run(&["check", kubeadm]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert!(out.ends_with(&format!("{kubeadm}: ok\n")), "{out}");
    assert!(out.contains("notice: authentication.x509.clientCAFile: "), "{out}");
    assert!(!out.contains("cgroupDriver") && !out.contains("rotateCertificates"), "{out}");

    let dir = Dir::new();
    let unknown = dir.file("unknown.yaml", &format!("{HEAD}maxPod: 3\n"));
    let (code, out, _) = run(&["check", &unknown]);
    let message = "3:1: maxPod: unknown field, did you mean \"maxPods\"?";
    assert_eq!((code, out), (1, format!("{unknown}:{message}\n")));

    let own = "apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n";
    let strict = dir.file("own.yaml", &format!("{own}rundir: /x\n"));
    let (code, out, _) = run(&["check", &strict]);
    let message = "3:1: rundir: unknown field, did you mean \"runDir\"?";
    assert_eq!((code, out), (1, format!("{strict}:{message}\n")));
}

#[test]
fn check_reads_manifests_and_directories() {
    let dir = Dir::new();
    let good = dir.file("pods/web.yaml", POD);
    let bad = dir.file("pods/bad.yaml", &POD.replace("image", "imagee"));
    let twice = dir.file("pods/zz.yml", POD);
    let backup = dir.file("pods/web.yaml~", POD);
    let pods = format!("{}/pods", dir.path());

    let (code, out, error) = run(&["check", "--hostname-override", "Node-1", &good]);
    assert_eq!(
        (code, out, error),
        (0, format!("{good}: ok: pod default/web-node-1\n"), String::new())
    );

    let (code, out, _) = run(&["check", "--hostname-override=n", &pods]);
    assert_eq!(code, 1);
    let lines: Vec<&str> = out.lines().collect();
    let has =
        |start: String| assert!(lines.iter().any(|l| l.starts_with(&start)), "{start}\n{out}");
    has(format!("{good}: ok: pod default/web-n"));
    has(format!("{bad}:6:17: spec.containers[0].imagee: unknown field, did you mean \"image\"?"));
    has(format!("{backup}: ignored: a backup file"));
    has(format!(
        "{twice}:1:1: metadata.name: Duplicate value: \"default/web-n\": also written in {good} "
    ));

    let (code, out, _) = run(&["check", "/nonexistent/pod.yaml"]);
    assert!(code == 1 && out.contains("/nonexistent/pod.yaml: cannot be read"), "{out}");
}

#[test]
fn check_goes_by_the_agents_configuration() {
    let dir = Dir::new();
    let sysctl = "spec:\n  securityContext: {sysctls: [{name: net.core.somaxconn, value: '1024'}]}";
    let pod = dir.file("web.yaml", &POD.replace("spec:", sysctl));
    let config = dir.file("config.yaml", &format!("{HEAD}allowedUnsafeSysctls: [net.*]\n"));
    assert_eq!(run(&["check", &pod]).0, 1);
    let (code, out, _) = run(&["check", "--config", &config, &pod]);
    assert_eq!(code, 0, "{out}");
    let wrong = dir.file("wrong.yaml", "kind: x\n");
    assert_eq!(run(&["check", "--config", &wrong, &pod]).0, 1);
}

#[test]
fn credential_provider_plugins_are_checked_and_refused_at_the_start() {
    let dir = Dir::new();
    let provider = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: NAME\n  matchImages: ['*.example.com']\n  defaultCacheDuration: 1h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n";
    let first = dir.file("plugins/1.yaml", &provider.replace("NAME", "sh"));
    let second = dir.file("plugins/2.yml", &provider.replace("NAME", "none"));
    dir.file("plugins/readme.txt", "not read");
    let plugins = format!("{}/plugins", dir.path());
    let config = |path: &str| format!("--image-credential-provider-config={path}");
    let bin = "--image-credential-provider-bin-dir=/bin";
    let missing = "/bin/none: there is no such file";

    // The file alone, and with the programs.
    assert_eq!(run(&["check", &second]), (0, format!("{second}: ok\n"), String::new()));
    let (code, out, _) = run(&["check", bin, &second]);
    assert!(code == 1 && out.starts_with(&format!("{second}:4:9: providers[0].name")), "{out}");
    assert!(out.contains(missing), "{out}");
    let pod = dir.file("web.yaml", POD);
    let (code, out, _) = run(&["check", bin, &config(&plugins), &pod]);
    assert!(code == 1 && out.contains(missing), "{out}");
    let (code, out, _) = run(&["check", bin, &config(&first), &pod]);
    assert!(code == 0 && out.contains(&format!("{first}: ok\n")), "{out}");

    for (args, part) in [
        (&[&*config(&plugins), bin][..], missing),
        (&[&*config(&first)], "needs --image-credential-provider-bin-dir as well"),
        (&[bin], "needs --image-credential-provider-config as well"),
        (&[&*config("/nonexistent"), bin], "/nonexistent: cannot be read"),
        (&[&*config("/sys/kernel"), bin], "no *.yaml, *.yml or *.json file is in it"),
    ] {
        let (code, _, error) = run(args);
        assert!(code == 2 && error.contains(part), "{args:?}: {code}\n{error}");
    }
}
