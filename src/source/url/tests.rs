use super::*;
use crate::{
    desired::{Knowledge, SourceSnapshot},
    manifest::Settings,
    model::FileVerdict,
    source::{Accepts, CredentialsDirectory, SavedState},
};
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
};

/// A web server that gives one answer, and says what it was asked.
struct Web {
    answer: watch::Sender<Arc<Vec<u8>>>,
    asked: watch::Receiver<String>,
    url: String,
    tasks: JoinSet<()>,
}

async fn web() -> Web {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let (answer, given) = watch::channel(Arc::new(ok("")));
    let (tell, asked) = watch::channel(String::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                text.push(stream.read_u8().await.unwrap());
            }
            tell.send_replace(String::from_utf8(text).unwrap());
            let answer = Arc::clone(&given.borrow());
            stream.write_all(&answer).await.ok();
        }
    });
    Web { answer, asked, url, tasks }
}

fn response(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn ok(body: &str) -> Vec<u8> {
    response("200 OK", body)
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: c, image: busybox}}\n"
    )
}

fn list(names: &[&str]) -> String {
    let items: Vec<String> = names
        .iter()
        .map(|n| {
            format!(
                r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{n}"}},"spec":{{"containers":[{{"name":"c","image":"busybox"}}]}}}}"#
            )
        })
        .collect();
    format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{}]}}"#, items.join(","))
}

fn options(saved: SavedState) -> SourceOptions {
    SourceOptions {
        accepts: Accepts::default(),
        credentials: CredentialsDirectory::None,
        node_name: "node".to_owned(),
        settings: Settings::default(),
        check_every: Duration::from_millis(20),
        saved,
        admitted: Vec::new(),
    }
}

fn names(snapshot: &SourceSnapshot) -> Vec<&str> {
    snapshot.pods.iter().map(|pod| pod.key.name.strip_suffix("-node").unwrap()).collect()
}

async fn until(
    handle: &mut SourceHandle,
    mut wish: impl FnMut(&SourceSnapshot) -> bool,
) -> Arc<SourceSnapshot> {
    let waited = timeout(Duration::from_secs(10), handle.snapshots.wait_for(|s| wish(s)))
        .await
        .map(|s| s.map(|s| Arc::clone(&s)));
    match waited {
        Ok(snapshot) => snapshot.unwrap(),
        Err(_) => panic!("not as wished: {:#?}", handle.snapshots.borrow()),
    }
}

fn error_has(snapshot: &SourceSnapshot, text: &str) -> bool {
    snapshot.view.error.as_ref().is_some_and(|error| error.contains(text))
}

#[tokio::test]
async fn a_request_to_look_again_does_not_wait_for_the_clock() {
    let mut web = web().await;
    let options =
        SourceOptions { check_every: Duration::from_secs(3600), ..options(SavedState::None) };
    let (source, handle) = UrlSource::new(&web.url, &[], options);
    web.tasks.spawn(source.run(CancellationToken::new()));
    for _ in 0..3 {
        let asked = timeout(Duration::from_secs(10), web.asked.changed());
        asked.await.expect("no request").unwrap();
        handle.look_again();
    }
}

#[tokio::test]
async fn asks_with_headers_and_keeps_what_it_had_when_that_fails() {
    let mut web = web().await;
    let headers = [("X-Node", "a"), ("x-node", "b"), ("Authorization", "Bearer t")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    web.answer.send_replace(Arc::new(ok(&[pod("a"), pod("b")].join("---\n"))));
    let (source, mut handle) = UrlSource::new(&web.url, &headers, options(SavedState::None));
    web.tasks.spawn(source.run(CancellationToken::new()));
    let first = until(&mut handle, |s| names(s) == ["a", "b"]).await;
    assert_eq!(first.knowledge, Knowledge::Complete);
    assert_eq!(*first.pods[0].origin.location, *web.url);
    let asked = web.asked.borrow().to_lowercase();
    for header in ["x-node: a\r\n", "x-node: b\r\n", "authorization: bearer t\r\n", "host: "] {
        assert!(asked.contains(header), "{asked}");
    }
    assert!(asked.starts_with("get /pods http/1.1\r\n"), "{asked}");

    for (answer, error) in [
        (response("503 Service Unavailable", "x"), "503 Service Unavailable"),
        (ok(""), "the answer is empty"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nkind".to_vec(), "ended early"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 11000000\r\n\r\n".to_vec(), "ended early"),
        (b"what\r\n\r\n".to_vec(), "error"),
    ] {
        web.answer.send_replace(Arc::new(answer));
        let kept = until(&mut handle, |s| error_has(s, error)).await;
        assert_eq!(names(&kept), ["a", "b"]);
        assert!(Arc::ptr_eq(&kept.pods[0], &first.pods[0]));
    }
    web.answer.send_replace(Arc::new(ok("{")));
    let kept = until(&mut handle, |s| {
        matches!(
            s.view.files.first().map(|f| &f.verdicts[..]),
            Some([FileVerdict::Rejected { key: None, last_good: true, .. }])
        )
    })
    .await;
    assert_eq!(names(&kept), ["a", "b"]);
    web.answer.send_replace(Arc::new(ok(&list(&["b", "c"]))));
    until(&mut handle, |s| names(s) == ["b", "c"]).await;
    web.answer.send_replace(Arc::new(ok(&list(&[]))));
    until(&mut handle, |s| names(s).is_empty()).await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let mut web = web().await;
    let large = vec![b'#'; MAX_BODY_BYTES + 1];
    web.answer.send_replace(Arc::new(ok(&String::from_utf8(large).unwrap())));
    let (source, mut handle) = UrlSource::new(&web.url, &[], options(SavedState::None));
    web.tasks.spawn(source.run(CancellationToken::new()));
    until(&mut handle, |s| error_has(s, "larger than 4 MiB")).await;
}

#[tokio::test]
async fn a_url_that_is_down_at_start_leaves_the_saved_pods() {
    let mut web = web().await;
    web.answer.send_replace(Arc::new(ok(&pod("a"))));
    let (source, mut handle) = UrlSource::new(&web.url, &[], options(SavedState::None));
    web.tasks.spawn(source.run(CancellationToken::new()));
    until(&mut handle, |s| names(s) == ["a"]).await;
    let saved = serde_json::to_value(&**handle.saved.borrow()).unwrap();
    web.tasks.shutdown().await;
    let (source, mut handle) = UrlSource::new(&web.url, &[], options(SavedState::Saved(saved)));
    assert_eq!(handle.snapshots.borrow().knowledge, Knowledge::Checkpoint);
    assert_eq!(names(&handle.snapshots.borrow()), ["a"]);
    let mut tasks = JoinSet::new();
    tasks.spawn(source.run(CancellationToken::new()));
    let kept = until(&mut handle, |s| s.knowledge == Knowledge::Complete).await;
    assert_eq!(names(&kept), ["a"]);
    assert!(error_has(&kept, "refused"), "{:?}", kept.view.error);
}

#[tokio::test]
async fn what_can_not_be_asked_is_said() {
    for (url, header, error) in [
        ("ftp://x/", ("a", "b"), "http://HOST"),
        ("http://u:p@x/", ("a", "b"), "user name"),
        ("http://127.0.0.1/", ("a b", "c"), "header \"a b\""),
        ("http://127.0.0.1/", ("a", "b\nc"), "header \"a\""),
    ] {
        let headers = [(header.0.to_owned(), header.1.to_owned())];
        let (source, mut handle) = UrlSource::new(url, &headers, options(SavedState::None));
        let mut tasks = JoinSet::new();
        tasks.spawn(source.run(CancellationToken::new()));
        until(&mut handle, |s| error_has(s, error)).await;
    }
}

#[test]
fn the_system_certificates_are_used_for_https() {
    match Requester::default().tls() {
        Ok(_) | Err(UrlError::Certificates(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_url_is_shown_without_query_fragment_and_user_name() {
    for (url, shown) in [
        ("https://pods.example/a?token=secret", "https://pods.example/a"),
        ("https://user:secret@pods.example/a@b#secret", "https://pods.example/a@b"),
        ("http://pods.example?secret", "http://pods.example"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("no url?secret", "no url"),
    ] {
        assert_eq!(without_secrets(url), shown);
    }
}

fn redirect(location: &str) -> Vec<u8> {
    let head = "HTTP/1.1 302 Found\r\ncontent-length: 0\r\nconnection: close\r\n";
    format!("{head}location: {location}\r\n\r\n").into_bytes()
}

fn secrets() -> [(String, String); 2] {
    [("X-Token", "s3cret"), ("User-Agent", "s3cret")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

#[tokio::test]
async fn a_redirect_to_another_host_gets_no_configured_header() {
    let (mut first, mut second) = (web().await, web().await);
    first.answer.send_replace(Arc::new(redirect(&second.url)));
    second.answer.send_replace(Arc::new(ok(&pod("a"))));
    let (source, mut handle) = UrlSource::new(&first.url, &secrets(), options(SavedState::None));
    first.tasks.spawn(source.run(CancellationToken::new()));
    let found = until(&mut handle, |s| names(s) == ["a"]).await;
    assert_eq!(*found.pods[0].origin.location, *first.url);
    assert!(first.asked.borrow_and_update().contains("s3cret"));
    let asked = second.asked.borrow_and_update().to_lowercase();
    assert!(asked.starts_with("get /pods") && !asked.contains("s3cret"), "{asked}");
    assert!(asked.contains("user-agent: nodelet/"), "{asked}");
}

#[tokio::test]
async fn ten_redirects_are_followed_and_headers_stay_on_the_host() {
    let mut web = web().await;
    web.answer.send_replace(Arc::new(redirect("/elsewhere?a=b")));
    let options =
        SourceOptions { check_every: Duration::from_secs(3600), ..options(SavedState::None) };
    let (source, mut handle) = UrlSource::new(&web.url, &secrets(), options);
    web.tasks.spawn(source.run(CancellationToken::new()));
    until(&mut handle, |s| error_has(s, "stopped after 10 redirects")).await;
    let asked = web.asked.borrow_and_update().to_lowercase();
    assert!(asked.starts_with("get /elsewhere?a=b ") && asked.contains("x-token: s3cret"));
}

#[test]
fn redirect_locations_are_resolved() {
    let base = request("https://a.example/x/y?q=1", &secrets()).unwrap();
    let next = |location: &str| {
        let next = redirected(&base, location).map_err(|error| error.to_string())?;
        Ok::<_, String>((next.uri().to_string(), next.headers().contains_key("x-token")))
    };
    for (location, want, keeps_headers) in [
        ("z", "https://a.example/x/z", true),
        ("/z#part", "https://a.example/z", true),
        ("?p=a:b", "https://a.example/x/y?p=a:b", true),
        ("https://A.example/z", "https://A.example/z", true),
        ("//b.example/z", "https://b.example/z", false),
        ("https://b.example/z", "https://b.example/z", false),
        ("https://a.example:8443/z", "https://a.example:8443/z", false),
        ("https://sub.a.example/z", "https://sub.a.example/z", false),
    ] {
        assert_eq!(next(location), Ok((want.to_owned(), keeps_headers)), "{location}");
    }
    for (location, want) in [
        ("http://a.example/z", "redirects from https to http"),
        ("https://user:pw@a.example/z", "redirects to another place: holds a user name"),
        ("file:///etc/shadow", "redirects to another place: is not a URL"),
    ] {
        let error = next(location).unwrap_err();
        assert!(error.starts_with(want) && !error.contains("pw@"), "{location}: {error}");
    }
    // A host that was left gets no headers when a later redirect leads back.
    let away = redirected(&base, "https://b.example/").unwrap();
    let back = redirected(&away, "https://a.example/").unwrap();
    assert!(!back.headers().contains_key("x-token"));
    // From http to https on the same host they stay.
    let plain = request("http://a.example/x", &secrets()).unwrap();
    assert!(redirected(&plain, "https://a.example/x").unwrap().headers().contains_key("x-token"));
}
