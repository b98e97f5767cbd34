use super::*;
use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};
use tempfile::TempDir;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A plugin that is a shell script, and that writes a line for each of its runs.
struct Script {
    dir: TempDir,
}

impl Script {
    fn new(body: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("plugin");
        let runs = dir.path().join("runs");
        let text = format!("#!/bin/sh\necho run >> {}\n{body}\n", runs.display());
        // Written by another name, so that no other thread that forks holds the program open.
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(&program)
            .arg(text)
            .status();
        assert!(status.unwrap().success());
        assert!(fs::metadata(&program).unwrap().permissions().mode() & 0o100 != 0);
        Self { dir }
    }

    /// Answers with `user` for every image of `r.io`.
    fn answering(user: &str, rest: &str) -> Self {
        Self::new(&format!(
            "echo '{{\"apiVersion\": \"{V1}\", \"kind\": \"CredentialProviderResponse\", \
             \"auth\": {{\"r.io\": {{\"username\": \"{user}\", \"password\": \"p\"}}}}{rest}}}'"
        ))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }

    fn config(&self, match_images: &[&str]) -> CredentialProvider {
        CredentialProvider {
            name: "plugin".to_owned(),
            command: Program { program: self.path("plugin"), args: Vec::new(), env: Vec::new() },
            match_images: match_images.iter().map(|text| (*text).to_owned()).collect(),
            default_cache: Duration::from_secs(3600),
            api_version: V1.to_owned(),
        }
    }

    fn providers(&self, match_images: &[&str]) -> Providers {
        Providers::new(vec![self.config(match_images)])
    }
}

fn users(keyring: &Keyring, repository: &str) -> Vec<String> {
    keyring.lookup(repository).into_iter().map(|one| one.username.clone()).collect()
}

async fn asked(providers: &Providers, repository: &str) -> Vec<String> {
    users(&providers.keyring(repository).await, repository)
}

#[tokio::test]
async fn a_plugin_is_asked_for_its_images_alone() {
    let script = Script::answering("u", ", \"cacheKeyType\": \"Image\"");
    let providers = script.providers(&["*.example.com", "r.io/team"]);
    assert!(asked(&providers, "r.io/other/app").await.is_empty());
    assert!(asked(&providers, "example.com/app").await.is_empty());
    assert_eq!(script.runs(), 0);
    assert_eq!(asked(&providers, "r.io/team/app").await, ["u"]);
    assert_eq!(script.runs(), 1);
}

#[tokio::test]
async fn an_answer_holds_for_what_it_says() {
    for (rest, after_the_same, after_another) in [
        ("\"cacheKeyType\": \"Image\"", 1, 2),
        ("\"cacheKeyType\": \"Registry\"", 1, 1),
        ("\"cacheKeyType\": \"Global\"", 1, 1),
        ("\"cacheKeyType\": \"Global\", \"cacheDuration\": \"0s\"", 2, 3),
        ("\"cacheKeyType\": \"Image\", \"cacheDuration\": \"1h\"", 1, 2),
    ] {
        let script = Script::answering("u", &format!(", {rest}"));
        let providers = script.providers(&["r.io"]);
        assert_eq!(asked(&providers, "r.io/a").await, ["u"]);
        assert_eq!(asked(&providers, "r.io/a").await, ["u"]);
        assert_eq!(script.runs(), after_the_same, "{rest}");
        assert_eq!(asked(&providers, "r.io/b").await, ["u"]);
        assert_eq!(script.runs(), after_another, "{rest}");
    }
}

#[tokio::test]
async fn a_plugin_gets_the_request_arguments_and_environment() {
    let script = Script::new("cat > \"$DIR/request\"; echo \"$@\" > \"$DIR/args\"; exit 1");
    let mut config = script.config(&["r.io"]);
    config.command.args = vec!["get".to_owned(), "a b".to_owned()];
    config.command.env = vec![("DIR".to_owned(), script.dir.path().display().to_string())];
    assert!(asked(&Providers::new(vec![config]), "r.io/app").await.is_empty());
    let request: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(script.path("request")).unwrap()).unwrap();
    assert_eq!(request["kind"], "CredentialProviderRequest");
    assert_eq!((&request["apiVersion"], &request["image"]), (&V1.into(), &"r.io/app".into()));
    assert_eq!(fs::read_to_string(script.path("args")).unwrap(), "get a b\n");
}

#[tokio::test]
async fn a_plugin_that_fails_hides_no_other() {
    let good = Script::answering("good", ", \"cacheKeyType\": \"Image\"");
    for bad in ["exit 1", "echo garbage", "", "cat; cat", "yes", "kill -9 $$"] {
        let bad = Script::new(bad);
        let providers = Providers::new(vec![bad.config(&["r.io"]), good.config(&["r.io"])]);
        assert_eq!(asked(&providers, "r.io/app").await, ["good"]);
        assert_eq!(asked(&providers, "r.io/app").await, ["good"]);
        assert_eq!(bad.runs(), 2, "a failure is not kept");
    }
}

/// Waits until the script has begun a run.
async fn begun(script: &Script, runs: usize) {
    let wait = async {
        while script.runs() < runs {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
}

#[tokio::test]
async fn those_that_ask_at_once_share_an_answer() {
    let script = Script::new(&format!(
        "d=$(dirname $0)\nwhile [ ! -e $d/go ]; do sleep 0.01; done\n\
         echo '{{\"apiVersion\": \"{V1}\", \"kind\": \"CredentialProviderResponse\", \
         \"cacheKeyType\": \"Image\", \"cacheDuration\": \"0s\", \
         \"auth\": {{\"r.io\": {{\"username\": \"u\"}}}}}}'"
    ));
    let providers = script.providers(&["r.io"]);
    let go = async {
        begun(&script, 1).await;
        fs::write(script.path("go"), "").unwrap();
    };
    let ask = || asked(&providers, "r.io/app");
    let (first, second, third, ()) = tokio::join!(ask(), ask(), ask(), go);
    assert_eq!([first, second, third], [["u"], ["u"], ["u"]]);
    assert_eq!(script.runs(), 1);
}

#[tokio::test]
async fn an_asker_that_goes_leaves_the_question_to_the_next() {
    let script = Script::new(&format!(
        "d=$(dirname $0)\n[ -e $d/go ] || {{ echo $$ > $d/pid; exec sleep 1000; }}\n\
         echo '{{\"apiVersion\": \"{V1}\", \"kind\": \"CredentialProviderResponse\", \
         \"cacheKeyType\": \"Image\", \"auth\": {{\"r.io\": {{\"username\": \"u\"}}}}}}'"
    ));
    let providers = script.providers(&["r.io"]);
    let mut first = Box::pin(asked(&providers, "r.io/app"));
    tokio::select! {
        _ = &mut first => panic!("it hangs"),
        () = begun(&script, 1) => {}
    }
    let second = asked(&providers, "r.io/app");
    let leave = async {
        tokio::task::yield_now().await;
        fs::write(script.path("go"), "").unwrap();
        drop(first);
    };
    let (second, ()) = tokio::join!(second, leave);
    assert_eq!(second, ["u"]);
    assert_eq!(script.runs(), 2);
}
