use super::{
    core::{PullStep, is_unreachable, next_step, pull_failed},
    ensure::{Ensure, PullError},
    keyring::{Credentials, Keyring, Layout},
    limit::PullLimits,
    unreachable::Unreachable,
    *,
};
use crate::{
    cri::{CriError, ImageFound, v1::PodSandboxConfig},
    model::{DataObject, ObjectKind},
    podspec::image_name::full_names,
    program::Program,
};
use std::{cell::RefCell, collections::BTreeMap, fs, future::ready, sync::Arc, time::Duration};

#[test]
fn policies_default_by_tag_and_decide() {
    let policy = |image: &str, policy: Option<&str>| PullPolicy::of(policy, image);
    assert_eq!(policy("a", None), PullPolicy::Always);
    assert_eq!(policy("a:latest", None), PullPolicy::Always);
    assert_eq!(policy("a:1", None), PullPolicy::IfNotPresent);
    assert_eq!(policy(&format!("a@sha256:{}", "0".repeat(64)), None), PullPolicy::IfNotPresent);
    assert_eq!(policy("a:1", Some("Always")), PullPolicy::Always);
    assert_eq!(policy("a", Some("Never")), PullPolicy::Never);

    use PullPolicy::{Always, IfNotPresent, Never};
    for (policy, allowed, present, step) in [
        (Always, true, None, PullStep::Pull),
        (Always, false, None, PullStep::Inspect),
        (Always, false, Some(true), PullStep::Use),
        (Always, false, Some(false), PullStep::Missing),
        (IfNotPresent, true, None, PullStep::Inspect),
        (IfNotPresent, true, Some(true), PullStep::Use),
        (IfNotPresent, true, Some(false), PullStep::Pull),
        (IfNotPresent, false, Some(false), PullStep::Missing),
        (Never, true, None, PullStep::Inspect),
        (Never, true, Some(true), PullStep::Use),
        (Never, true, Some(false), PullStep::Missing),
    ] {
        assert_eq!(next_step(policy, allowed, present), step, "{policy:?} {allowed} {present:?}");
    }
}

#[test]
fn failures_have_the_fields_names() {
    let failed = |text: &str| pull_failed("img", text);
    let plain = failed("failed to resolve reference");
    assert_eq!(plain.reason, FailureReason::ErrImagePull);
    assert_eq!(plain.to_string(), "failed to resolve reference");
    assert!(plain.pull_tried);
    let down = failed("RegistryUnavailable: try later");
    assert_eq!(down.reason.as_str(), "RegistryUnavailable");
    assert_eq!(
        down.message,
        "image pull failed for img because the registry is unavailable: try later"
    );
    let unsigned = failed("SignatureValidationFailed");
    assert_eq!(
        unsigned.message,
        "image pull failed for img because the signature validation failed"
    );
}

#[test]
fn an_answer_of_the_registry_is_no_unreachable_registry() {
    for text in [
        "failed to do request: Head \"https://r/v2/a\": dial tcp 127.0.0.1:5000: connect: connection refused",
        "failed to do request: Head \"https://r/v2/a\": dial tcp: lookup r on 1.1.1.1:53: no such host",
        "Head \"https://r/v2/a\": dial tcp 10.0.0.1:443: i/o timeout",
        "Head \"https://r/v2/a\": net/http: TLS handshake timeout",
        "Head \"https://r/v2/a\": EOF",
        "failed to pull and unpack image \"r/a:1\": failed to do request: context canceled",
        "unexpected status from HEAD request to https://r/v2/a: 503 Service Unavailable",
        "RegistryUnavailable: down",
    ] {
        assert!(is_unreachable(text), "{text}");
    }
    for text in [
        "failed to resolve reference \"r/a:b\": r/a:b: not found",
        "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed",
        "unexpected status from HEAD request: 401 Unauthorized",
        "failed to extract layer: no space left on device",
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        "pull QPS exceeded",
    ] {
        assert!(!is_unreachable(text), "{text}");
    }
}

fn ring(auths: &serde_json::Value) -> Keyring {
    let text = serde_json::json!({ "auths": auths }).to_string();
    Keyring::parse(text.as_bytes(), Layout::Config).unwrap()
}

fn users(ring: &Keyring, repository: &str) -> Vec<String> {
    ring.lookup(repository).into_iter().map(|c| c.username.clone()).collect()
}

#[test]
fn credentials_match_from_the_most_specific_on() {
    let user = |name: &str| serde_json::json!({"username": name, "password": "p"});
    let ring = ring(&serde_json::json!({
        "reg.example.com": user("host"),
        "https://reg.example.com/team/": user("team-slash"),
        "reg.example.com/team/app": user("app"),
        "*.example.com": user("glob"),
        "reg.example.com:5000": user("port"),
        "[a-q]*.example.org": user("set"),
        "https://index.docker.io/v1/": user("hub"),
        "helper.example.com": {},
        "[fd00::1]:5000/team": user("IPv6"),
        "[fd00::2]": user("IPv6 without port"),
    }));
    assert_eq!(users(&ring, "reg.example.com/team/app"), ["app", "team-slash", "host", "glob"]);
    assert_eq!(users(&ring, "reg.example.com/team/other"), ["team-slash", "host", "glob"]);
    assert_eq!(users(&ring, "other.example.com/x"), ["glob"]);
    assert_eq!(users(&ring, "reg.example.com:5000/x"), ["port"]);
    assert_eq!(users(&ring, "hub.example.org/x"), ["set"]);
    assert!(users(&ring, "xyz.example.org/x").is_empty());
    assert!(users(&ring, "a.b.example.com/x").is_empty(), "as many parts as the key");
    assert!(users(&ring, "example.com/x").is_empty());
    assert_eq!(users(&ring, "docker.io/library/busybox"), ["hub"]);
    assert_eq!(users(&ring, "helper.example.com/x"), ["glob"]);
    assert_eq!(users(&ring, "[fd00::1]:5000/team/app"), ["IPv6"]);
    assert!(users(&ring, "[fd00::1]:5001/team/app").is_empty());
    assert_eq!(users(&ring, "[fd00::2]/app"), ["IPv6 without port"]);
}

/// Whoever may make a Secret chooses the patterns.
#[test]
fn a_pattern_of_many_stars_takes_no_time() {
    let user = |name: &str| serde_json::json!({"username": name, "password": "p"});
    let stars = "*a".repeat(100);
    let ring = ring(&serde_json::json!({
        format!("{stars}*.b"): user("many"),
        format!("{stars}c.b"): user("none"),
        "*a[bc]?d*.b": user("retried"),
    }));
    let host = format!("{}.b", "a".repeat(250));
    assert_eq!(users(&ring, &format!("{host}/x")), ["many"]);
    assert_eq!(users(&ring, "abxabxdz.b/x"), ["retried"]);
    assert!(users(&ring, "abxabxez.b/x").is_empty());
    let long = "a".repeat(300);
    assert!(users(&ring, &format!("{long}.b/x")).is_empty(), "no host has such a name");
}

#[test]
fn credentials_are_decoded_and_never_printed() {
    let ring = ring(&serde_json::json!({
        "a.io": {"auth": "dXNlcjpwYTpzcw=="},
        "b.io": {"auth": "dXNlcjpwYTpzcw"},
        "lines.io": {"auth": "dXNlcjpw\r\nYTpz\ncw==\n"},
        "c.io": {"auth": "not base64!"},
        "d.io": {"auth": "bm9jb2xvbg=="},
    }));
    for host in ["a.io/x", "b.io/x", "lines.io/x"] {
        let found = ring.lookup(host);
        assert_eq!((found[0].username.as_str(), found[0].password.as_str()), ("user", "pa:ss"));
        assert!(!format!("{found:?}").contains("pa:ss"));
    }
    assert!(ring.lookup("c.io/x").is_empty() && ring.lookup("d.io/x").is_empty());
    let legacy = br#"{"e.io": {"username": "u", "password": "p", "email": "x"}}"#;
    assert_eq!(users(&Keyring::parse(legacy, Layout::Legacy).unwrap(), "e.io/x"), ["u"]);
    assert!(Keyring::parse(b"{", Layout::Config).is_err());
}

#[test]
fn the_hash_of_credentials_is_the_kubelets() {
    let hash = |entry: serde_json::Value| {
        let ring = ring(&serde_json::json!({ "r.io": entry }));
        ring.lookup("r.io/x")[0].hash()
    };
    for (entry, expected) in [
        (
            serde_json::json!({"auth": "dXNlcjpwYXNzd29yZA=="}),
            "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d",
        ),
        (
            serde_json::json!({"username": "user", "password": "password", "email": "a@b.c"}),
            "083240995659c03377ab9c31666c89e95bcd6cad8211821af13848bb12893444",
        ),
        (
            serde_json::json!({"username": "u<&>", "password": "p\"\\é\u{2028}"}),
            "9ba9772a521240dd831ed90f1e9faae967af24665b9ba666693501d31e14e3db",
        ),
    ] {
        assert_eq!(hash(entry), expected);
    }
}

#[test]
fn the_first_usable_file_counts() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let paths =
        CredentialPaths { root_dir: at("root"), work_dir: at("work"), home_dir: Some(at("home")) };
    at("home/.docker");
    let write = |path: &str, text: &str| fs::write(dir.path().join(path), text).unwrap();
    let auths = |user: &str| format!("{{\"auths\": {{\"r.io\": {{\"username\": \"{user}\"}}}}}}");
    write("root/.dockercfg", "{\"r.io\": {\"username\": \"legacy\"}}");
    assert_eq!(users(&paths.read(), "r.io/x"), ["legacy"]);
    write("home/.docker/config.json", &auths("home"));
    assert_eq!(users(&paths.read(), "r.io/x"), ["home"]);
    write("root/config.json", "{ damaged");
    assert_eq!(users(&paths.read(), "r.io/x"), ["home"]);
    write("root/config.json", &auths("root"));
    assert_eq!(users(&paths.read(), "r.io/x"), ["root"]);
}

#[tokio::test]
async fn pulls_take_turns_in_order() {
    let limits = PullLimits::new(Some(1), 0, 0);
    let first = limits.slot().await;
    assert!(!first.waited);
    let mut second = Box::pin(limits.slot());
    let mut third = Box::pin(limits.slot());
    let poll = |turn: std::pin::Pin<&mut dyn Future<Output = limit::Slot>>| {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match turn.poll(&mut cx) {
            std::task::Poll::Ready(slot) => Some(slot),
            std::task::Poll::Pending => None,
        }
    };
    assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
    drop(first);
    assert!(poll(third.as_mut()).is_none(), "not before its turn");
    let turn = poll(second.as_mut()).unwrap();
    assert!(turn.waited);
    drop(turn);
    assert!(poll(third.as_mut()).is_some());
    let unbounded = PullLimits::new(None, 0, 0);
    let _both = (unbounded.slot().await, unbounded.slot().await);
    assert!(unbounded.may_begin());
}

/// A runtime with these images and a registry that answers each pull with the next of `answers`.
#[derive(Default)]
struct World {
    present: RefCell<BTreeMap<String, u64>>,
    answers: RefCell<Vec<Result<String, PullError>>>,
    pulls: RefCell<Vec<(String, Option<String>)>>,
    /// What is known to have been pulled.
    noted: RefCell<Vec<String>>,
    inspect_error: Option<CriError>,
    credentials: CredentialPaths,
    providers: Vec<CredentialProvider>,
    qps: u32,
    records: Records,
    unreachable: Unreachable,
}

/// Records of pulls in a directory of their own.
struct Records {
    dir: tempfile::TempDir,
    records: PullRecords,
}

impl Default for Records {
    fn default() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::load(dir.path().to_owned(), VerificationPolicy::default());
        Self { dir, records }
    }
}

impl World {
    fn with(present: &[&str], answers: Vec<Result<&str, &str>>) -> Self {
        let answer = |answer: Result<&str, &str>| {
            answer
                .map(str::to_owned)
                .map_err(|text| PullError { text: text.to_owned(), answered: true })
        };
        Self {
            present: RefCell::new(present.iter().map(|name| ((*name).to_owned(), 7)).collect()),
            answers: RefCell::new(answers.into_iter().map(answer).rev().collect()),
            ..Self::default()
        }
    }

    fn find(&self, name: &str) -> Option<ImageFound> {
        let size_bytes = *self.present.borrow().get(name)?;
        Some(ImageFound {
            id: format!("id of {name}"),
            names: full_names(name),
            size_bytes,
            uid: None,
            username: String::new(),
        })
    }

    async fn ensure(
        &self,
        request: PullRequest<'_>,
    ) -> (Result<ImageFound, ImageFailure>, Vec<String>) {
        let client = RuntimeClient::new("unix:///nowhere.sock", None, Duration::from_secs(1));
        let images = Images::new(
            client.unwrap(),
            ImageSettings {
                parallel: Some(1),
                qps: self.qps,
                burst: 1,
                credentials: self.credentials.clone(),
                providers: self.providers.clone(),
                records: self.records.records.clone(),
            },
        );
        let images = Images { unreachable: self.unreachable.clone(), ..images };
        if self.qps > 0 {
            assert!(images.limits.may_begin(), "the burst is used up by another pod");
        }
        let inspect = |name: String| {
            ready(match &self.inspect_error {
                Some(error) => Err(error.clone()),
                None => Ok(self.find(&name)),
            })
        };
        let pull = |name: String, credentials: Option<Credentials>| {
            let user = credentials.map(|c| c.username);
            self.pulls.borrow_mut().push((name.clone(), user));
            let answer = self.answers.borrow_mut().pop().unwrap();
            if answer.is_ok() {
                self.present.borrow_mut().insert(name, 42);
            }
            ready(answer)
        };
        let mut events = Vec::new();
        let mut record = |event: ImageEvent| {
            events.push(format!("{:?} {} {}", event.kind, event.reason, event.message));
        };
        let ensure =
            Ensure { images: &images, request: &request, inspect, pull, record: &mut record };
        let result = ensure.run().await;
        self.noted.borrow_mut().extend(images.pulled().take().into_iter().map(|pull| pull.id));
        assert!(images.pulled().take().is_empty(), "each pull is taken once");
        (result, events)
    }
}

fn request(policy: PullPolicy) -> PullRequest<'static> {
    PullRequest {
        image: "app",
        policy,
        pull_allowed: true,
        accept_present: true,
        pull_secrets: &[],
    }
}

#[tokio::test]
async fn a_present_image_is_used() {
    let world = World::with(&["app:latest"], vec![]);
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Never] {
        let (result, events) = world.ensure(request(policy)).await;
        assert_eq!(result.unwrap().id, "id of app:latest");
        assert_eq!(
            events,
            [
                "Normal Pulled Container image \"app\" already present on machine and can be accessed by the pod"
            ]
        );
    }
    // In back-off, whatever the policy.
    let waiting = PullRequest { pull_allowed: false, ..request(PullPolicy::Always) };
    assert!(world.ensure(waiting).await.0.is_ok());
    assert!(world.pulls.borrow().is_empty() && world.noted.borrow().is_empty());
}

#[tokio::test]
async fn a_missing_image_is_pulled_and_looked_at() {
    let world = World::with(&[], vec![Ok("app:latest"), Ok("app:latest")]);
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Always] {
        let (result, events) = world.ensure(request(policy)).await;
        assert_eq!(result.unwrap().size_bytes, 42);
        assert_eq!(events[0], "Normal Pulling Pulling image \"app\"");
        assert!(
            events[1].starts_with("Normal Pulled Successfully pulled image \"app\" in ")
                && events[1].ends_with(" including waiting). Image size: 42 bytes."),
            "{events:?}"
        );
        assert_eq!(events.len(), 2);
    }
    let pull = ("app:latest".to_owned(), None);
    assert_eq!(*world.pulls.borrow(), [pull.clone(), pull]);
    assert_eq!(*world.noted.borrow(), ["id of app:latest", "id of app:latest"]);
}

#[tokio::test]
async fn failures_are_told() {
    let world = World::with(&[], vec![Err("no such manifest")]);
    let (result, events) = world.ensure(request(PullPolicy::Always)).await;
    let failure = result.unwrap_err();
    assert_eq!(failure.reason, FailureReason::ErrImagePull);
    assert!(failure.pull_tried);
    assert_eq!(
        events[1..],
        [
            "Warning Failed Failed to pull image \"app\": no such manifest",
            "Warning Failed Error: ErrImagePull",
        ]
    );

    let (result, events) = world.ensure(request(PullPolicy::Never)).await;
    let failure = result.unwrap_err();
    assert_eq!(failure.message, "Container image \"app\" is not present with pull policy of Never");
    assert!(!failure.pull_tried);
    assert_eq!(events[1], "Warning Failed Error: ErrImageNeverPull");

    let waiting = PullRequest { pull_allowed: false, ..request(PullPolicy::IfNotPresent) };
    let (result, events) = world.ensure(waiting).await;
    assert_eq!(result.unwrap_err().reason, FailureReason::ImagePullBackOff);
    assert!(events.is_empty(), "the plan tells about the back-off");

    let bad = PullRequest { image: "App", ..request(PullPolicy::Always) };
    let (result, events) = world.ensure(bad).await;
    let failure = result.unwrap_err();
    assert_eq!(
        failure.message,
        "Failed to apply default image tag \"App\": couldn't parse image name \"App\": invalid reference format: repository name (library/App) must be lowercase"
    );
    assert_eq!(events[1], "Warning Failed Error: InvalidImageName");

    let boom = CriError::Other { code: "Internal".to_owned(), message: "boom".to_owned() };
    let broken = World { inspect_error: Some(boom), ..World::default() };
    let failure = broken.ensure(request(PullPolicy::IfNotPresent)).await.0.unwrap_err();
    assert_eq!(
        failure.message,
        "Failed to inspect image \"\": rpc error: code = Internal desc = boom"
    );
    assert_eq!(failure.reason.as_str(), "ImageInspectError");

    let fast = World { qps: 1, ..World::with(&[], vec![]) };
    let failure = fast.ensure(request(PullPolicy::Always)).await.0.unwrap_err();
    assert_eq!(
        (failure.reason, failure.message.as_str()),
        (FailureReason::ErrImagePull, "pull QPS exceeded")
    );
}

#[tokio::test]
async fn an_offline_machine_starts_what_it_has() {
    let offline = "dial tcp 10.0.0.1:443: connect: network is unreachable";
    let world = World::with(&["app:latest"], vec![Err(offline)]);
    let (result, events) = world.ensure(request(PullPolicy::Always)).await;
    assert_eq!(result.unwrap().id, "id of app:latest");
    assert_eq!(
        events[1..],
        [
            "Warning Failed Failed to pull image \"app\": dial tcp 10.0.0.1:443: connect: network is unreachable; the registry can't be reached, starting from the image already present on the machine"
        ]
    );
    let strict = PullRequest { accept_present: false, ..request(PullPolicy::Always) };
    let refused = World::with(&["app:latest"], vec![Err(offline)]).ensure(strict).await;
    assert!(refused.0.is_err());
    for (present, text) in [
        (vec![], offline),
        (vec!["app:latest"], "401 Unauthorized"),
        (vec!["app:latest"], "not found"),
    ] {
        let world = World::with(&present, vec![Err(text)]);
        assert!(world.ensure(request(PullPolicy::Always)).await.0.is_err(), "{text}");
    }
}

#[tokio::test]
async fn a_pull_that_may_not_begin_yet_needs_no_registry_that_is_away() {
    let offline = "dial tcp 10.0.0.1:443: connect: network is unreachable";
    let first = World::with(&["app:latest"], vec![Err(offline)]);
    let crowded = World {
        qps: 1,
        unreachable: first.unreachable.clone(),
        ..World::with(&["app:latest", "r.io/app:latest"], vec![])
    };
    let always = request(PullPolicy::Always);
    assert!(crowded.ensure(always).await.0.is_err(), "nothing is known of the registry");
    assert!(first.ensure(always).await.0.is_ok());
    let (result, events) = crowded.ensure(always).await;
    assert_eq!(result.unwrap().id, "id of app:latest");
    assert_eq!(
        events[1..],
        [
            "Warning Failed Image \"app\" is not pulled, because its registry could not be reached a moment ago (dial tcp 10.0.0.1:443: connect: network is unreachable); starting from the image already present on the machine"
        ]
    );
    let elsewhere = PullRequest { image: "r.io/app", ..always };
    let strict = PullRequest { accept_present: false, ..always };
    for refused in [elsewhere, strict] {
        assert!(crowded.ensure(refused).await.0.is_err(), "{refused:?}");
    }
    for answer in [Ok("app:latest"), Err("401 Unauthorized"), Err("503 Service Unavailable")] {
        first.unreachable.note("docker.io/library/app", offline, crate::clock::now().boot);
        assert!(crowded.ensure(always).await.0.is_ok());
        let reached = World::with(&["app:latest"], vec![answer]);
        let reached = World { unreachable: first.unreachable.clone(), ..reached };
        drop(reached.ensure(always).await);
        assert!(crowded.ensure(always).await.0.is_err(), "{answer:?}: the registry is there");
    }
}

#[tokio::test]
async fn credentials_are_tried_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"{"auths": {"r.io/team": {"username": "team"}, "r.io": {"username": "host"}}}"#;
    fs::write(dir.path().join("config.json"), text).unwrap();
    let credentials =
        CredentialPaths { root_dir: dir.path().to_owned(), ..CredentialPaths::default() };
    let answers = vec![Err("denied"), Ok("r.io/team/app:1"), Err("denied"), Err("also denied")];
    let world = World { credentials, ..World::with(&[], answers) };
    let wanted = PullRequest { image: "r.io/team/app:1", ..request(PullPolicy::Always) };
    assert!(world.ensure(wanted).await.0.is_ok());
    let users: Vec<_> =
        world.pulls.borrow().iter().map(|(_, user)| user.clone().unwrap()).collect();
    assert_eq!(users, ["team", "host"]);
    let failure = world.ensure(wanted).await.0.unwrap_err();
    assert_eq!(failure.message, "[denied, also denied]");
}

#[tokio::test]
async fn secrets_of_the_pod_are_tried_before_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let config = |user: &str| format!("{{\"auths\": {{\"r.io\": {{\"username\": \"{user}\"}}}}}}");
    fs::write(dir.path().join("config.json"), config("node")).unwrap();
    let credentials =
        CredentialPaths { root_dir: dir.path().to_owned(), ..CredentialPaths::default() };
    let secret = |name: &str, secret_type: &str, key: &str, text: &str| {
        let secret = DataObject::sample(ObjectKind::Secret, name, &[(key, text)]);
        Arc::new(DataObject { secret_type: secret_type.into(), ..secret })
    };
    let config_type = "kubernetes.io/dockerconfigjson";
    let secrets = [
        secret("other", "Opaque", ".dockerconfigjson", &config("opaque")),
        secret("broken", config_type, ".dockerconfigjson", "{"),
        secret("new", config_type, ".dockerconfigjson", &config("new")),
        secret("old", "kubernetes.io/dockercfg", ".dockercfg", r#"{"r.io": {"username": "old"}}"#),
    ];
    let answers = vec![Err("denied"), Err("denied"), Ok("r.io/app:1")];
    let world = World { credentials, ..World::with(&[], answers) };
    let wanted = request(PullPolicy::Always);
    let wanted = PullRequest { image: "r.io/app:1", pull_secrets: &secrets, ..wanted };
    assert!(world.ensure(wanted).await.0.is_ok());
    let users: Vec<_> =
        world.pulls.borrow().iter().map(|(_, user)| user.clone().unwrap()).collect();
    assert_eq!(users, ["new", "old", "node"]);
}

/// A docker config file with credentials of the node for `r.io`.
fn node_credentials() -> (tempfile::TempDir, CredentialPaths) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), r#"{"auths": {"r.io": {"username": "node"}}}"#)
        .unwrap();
    let root_dir = dir.path().to_owned();
    (dir, CredentialPaths { root_dir, ..CredentialPaths::default() })
}

#[tokio::test]
async fn credentials_of_plugins_are_tried_last() {
    let (_dir, credentials) = node_credentials();
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let response = format!(
        r#"{{"apiVersion": "{version}", "kind": "CredentialProviderResponse", "cacheKeyType": "Image", "auth": {{"r.io": {{"username": "plugin"}}}}}}"#
    );
    let provider = CredentialProvider {
        name: "plugin".to_owned(),
        command: Program { program: "echo".into(), args: vec![response], env: Vec::new() },
        match_images: vec!["r.io".to_owned()],
        default_cache: Duration::ZERO,
        api_version: version.to_owned(),
    };
    let world = World {
        credentials,
        providers: vec![provider],
        ..World::with(&[], vec![Err("denied"), Ok("r.io/app:1"), Ok("s.io/app:1")])
    };
    for image in ["r.io/app:1", "s.io/app:1"] {
        let wanted = PullRequest { image, ..request(PullPolicy::Always) };
        assert!(world.ensure(wanted).await.0.is_ok());
    }
    let users: Vec<_> = world.pulls.borrow().iter().map(|(_, user)| user.clone()).collect();
    assert_eq!(users, [Some("node".to_owned()), Some("plugin".to_owned()), None]);
}

fn pull_secret(name: &str, registry: &str, password: &str) -> Arc<DataObject> {
    let text =
        format!(r#"{{"auths": {{"{registry}": {{"username": "u", "password": "{password}"}}}}}}"#);
    let secret = DataObject::sample(ObjectKind::Secret, name, &[(".dockerconfigjson", &text)]);
    Arc::new(DataObject { secret_type: "kubernetes.io/dockerconfigjson".into(), ..secret })
}

const DENIED: &str = "pull access denied: insufficient_scope: authorization failed";

#[tokio::test]
async fn an_image_is_used_only_with_the_credentials_that_have_pulled_it() {
    let image = "r.io/app:1";
    let world = World::with(&[], vec![Ok(image), Err(DENIED), Err(DENIED), Ok(image)]);
    let secret = [pull_secret("first", "r.io", "right")];
    let wanted = PullRequest { image, ..request(PullPolicy::IfNotPresent) };
    let with = |pull_secrets| PullRequest { pull_secrets, ..wanted };
    assert!(world.ensure(with(&secret)).await.0.is_ok());
    let pulls = || world.pulls.borrow().len();
    assert!(world.ensure(with(&secret)).await.0.is_ok());
    assert_eq!(pulls(), 1, "the pod that has pulled it needs no pull");

    // A pod without the Secret sees no difference to an image that is not there.
    let (result, events) = world.ensure(wanted).await;
    assert_eq!(result.unwrap_err().message, DENIED);
    assert_eq!(events[0], "Normal Pulling Pulling image \"r.io/app:1\"");
    let never = world.ensure(PullRequest { policy: PullPolicy::Never, ..wanted }).await.0;
    assert_eq!(
        never.unwrap_err().message,
        "Container image \"r.io/app:1\" is not present with pull policy of Never"
    );
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Always] {
        let waiting = PullRequest { pull_allowed: false, policy, ..wanted };
        let failure = world.ensure(waiting).await.0.unwrap_err();
        assert_eq!(failure.reason, FailureReason::ImagePullBackOff);
    }
    assert_eq!(pulls(), 2);

    // The same credentials under another name, and with other ones beside them.
    let both = [pull_secret("a", "r.io", "wrong"), pull_secret("second", "r.io", "right")];
    assert!(world.ensure(with(&both)).await.0.is_ok());
    // Credentials of another registry or with another password are none.
    let others = [pull_secret("first", "s.io", "right"), pull_secret("first", "r.io", "wrong")];
    assert_eq!(world.ensure(with(&others)).await.0.unwrap_err().message, DENIED);
    assert_eq!(pulls(), 3);
    // A pull tells that the pod may use it.
    assert!(world.ensure(with(&others)).await.0.is_ok());
    assert!(world.ensure(with(&others)).await.0.is_ok());
    assert_eq!(pulls(), 4);
}

#[tokio::test]
async fn an_image_of_the_node_is_for_every_pod() {
    let (_dir, credentials) = node_credentials();
    let world =
        World { credentials, ..World::with(&["imported:1"], vec![Ok("r.io/app:1"), Ok("app:1")]) };
    let secrets = [pull_secret("other", "s.io", "p")];
    for image in ["r.io/app:1", "app:1"] {
        let wanted = PullRequest { image, ..request(PullPolicy::IfNotPresent) };
        assert!(world.ensure(wanted).await.0.is_ok());
    }
    for image in ["r.io/app:1", "app:1", "imported:1"] {
        for policy in [PullPolicy::IfNotPresent, PullPolicy::Never] {
            let wanted = PullRequest { image, pull_secrets: &secrets, ..request(policy) };
            assert!(world.ensure(wanted).await.0.is_ok(), "{image}");
        }
    }
    assert_eq!(world.pulls.borrow().len(), 2);
}

#[tokio::test]
async fn an_unreachable_registry_gives_no_access() {
    let offline = "dial tcp 10.0.0.1:443: connect: network is unreachable";
    let image = "r.io/app:1";
    let world = World::with(&[], vec![Ok(image), Err(offline), Err(offline)]);
    let secret = [pull_secret("first", "r.io", "right")];
    let always = PullRequest { image, ..request(PullPolicy::Always) };
    let with_secret = PullRequest { pull_secrets: &secret, ..always };
    assert!(world.ensure(with_secret).await.0.is_ok());
    assert!(world.ensure(with_secret).await.0.is_ok(), "it has pulled it");
    assert_eq!(world.ensure(always).await.0.unwrap_err().message, offline);
}

#[tokio::test]
async fn a_pull_that_wait_cut_off_leaves_its_intent() {
    let image = "r.io/app:1";
    let refused = PullError { text: "the connection is gone".to_owned(), answered: false };
    let world = World::with(&[], vec![]);
    world.answers.borrow_mut().push(Err(refused));
    let wanted = PullRequest { image, ..request(PullPolicy::IfNotPresent) };
    assert!(world.ensure(wanted).await.0.is_err());
    let intents = || fs::read_dir(world.records.dir.path().join("pulling")).unwrap().count();
    assert_eq!(intents(), 1);
    // The image has come all the same: nobody knows with which credentials.
    world.present.borrow_mut().insert(image.to_owned(), 7);
    world
        .answers
        .borrow_mut()
        .extend([Ok(image.to_owned()), Err(PullError { text: DENIED.to_owned(), answered: true })]);
    assert!(world.ensure(wanted).await.0.is_err());
    assert_eq!(intents(), 1, "a pull that fails does not explain the image");
    assert!(world.ensure(wanted).await.0.is_ok());
    assert_eq!(intents(), 0);
    assert!(world.ensure(wanted).await.0.is_ok());
    assert_eq!(world.pulls.borrow().len(), 3);
}

#[tokio::test]
async fn an_offline_machine_keeps_its_preloaded_images() {
    let image = "r.io/app:1";
    let world = World::with(&[image], vec![]);
    // Power fails while policy Always waits for a registry that is away.
    let lost = PullError { text: "the connection is gone".to_owned(), answered: false };
    let offline = PullError { text: "connection refused".to_owned(), answered: true };
    world.answers.borrow_mut().extend([Err(offline), Err(lost)]);
    let always = PullRequest { image, ..request(PullPolicy::Always) };
    assert!(world.ensure(always).await.0.is_err());
    let dir = world.records.dir.path().to_owned();
    assert_eq!(fs::read_dir(dir.join("pulling")).unwrap().count(), 2, "what was there before");
    let records = PullRecords::load(dir.clone(), VerificationPolicy::default());
    let world = World { records: Records { records, ..Records::default() }, ..world };
    let present = PullRequest { policy: PullPolicy::IfNotPresent, ..always };
    assert!(world.ensure(present).await.0.is_ok());
    assert!(world.ensure(always).await.0.is_ok());
}

/// A worker awaits it in a task.
#[tokio::test]
async fn ensuring_an_image_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let client = RuntimeClient::new("unix:///nowhere.sock", None, Duration::from_secs(1)).unwrap();
    let settings = ImageSettings {
        parallel: Some(2),
        qps: 5,
        burst: 10,
        credentials: CredentialPaths::default(),
        providers: Vec::new(),
        records: Records::default().records,
    };
    let images = Images::new(client, settings);
    let mut events = Vec::new();
    let mut record = |event: ImageEvent| events.push(event.reason);
    let request = request(PullPolicy::IfNotPresent);
    let sandbox = || -> PullConfig<'_> { Box::pin(ready(Ok(PodSandboxConfig::default()))) };
    let ensured = images.ensure(&request, &sandbox, &mut record);
    is_send(&ensured);
    let failure = ensured.await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::ImageInspectError);
    assert_eq!(events, ["InspectFailed", "Failed"]);
}
