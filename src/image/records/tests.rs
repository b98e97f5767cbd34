#![allow(clippy::unwrap_used, reason = "tests")]

use super::{
    core::{ImageAccess, PulledRecord, PulledWith},
    memory::{FileContent, RecordFile, file_name},
    *,
};
use crate::model::Now;
use jiff::Timestamp;
use std::{os::unix::fs::PermissionsExt as _, slice::from_ref};

const IMAGE: &str = "r.io/team/app:1";
const ID: &str = "sha256:0123";

fn at(seconds: u64) -> Now {
    let wall = Timestamp::new(1_700_000_000, 5).unwrap();
    Now { boot: Duration::from_secs(seconds), wall }
}

fn secret(name: &str, hash: &str) -> PullSecret {
    PullSecret::new("", "default", name, hash.to_owned())
}

fn with(name: &str, hash: &str) -> PulledWith {
    PulledWith::Secret(secret(name, hash))
}

fn memory() -> PullMemory {
    PullMemory::new(VerificationPolicy::default())
}

/// Judges the image [`ID`], whose only name is [`IMAGE`].
fn judge(memory: &PullMemory, image: &str, of_pod: &[PullSecret]) -> ImageAccess {
    memory.judge(image, ID, &[IMAGE.to_owned()], || of_pod.to_vec())
}

fn is_granted(memory: &PullMemory, image: &str, of_pod: &[PullSecret]) -> bool {
    judge(memory, image, of_pod) == ImageAccess::Granted
}

fn present(id: &str, tag: &str) -> Present {
    Present {
        id: id.to_owned(),
        tags: vec![tag.to_owned()],
        digests: Vec::new(),
        size: 1,
        pinned: false,
    }
}

fn text(memory: &PullMemory, file: &RecordFile) -> String {
    match memory.content(file, at(1)) {
        FileContent::Text { text, .. } => String::from_utf8(text).unwrap(),
        other @ (FileContent::Nothing | FileContent::AsItIs) => panic!("{other:?}"),
    }
}

#[test]
fn a_preloaded_image_is_for_every_pod_unless_all_are_verified() {
    assert!(is_granted(&memory(), IMAGE, &[]));
    let strict = PullMemory::new(VerificationPolicy::AlwaysVerify);
    assert_eq!(judge(&strict, IMAGE, &[secret("a", "1")]), ImageAccess::Unverified);
    let mut unreadable = memory();
    unreadable.note_unreadable();
    assert_eq!(judge(&unreadable, IMAGE, &[]), ImageAccess::Unverified);
}

#[test]
fn the_credentials_that_have_pulled_give_access() {
    let mut memory = memory();
    assert!(memory.note_pulled(IMAGE, ID, with("a", "1"), at(1)).is_some());
    assert!(memory.note_pulled(IMAGE, ID, with("a", "1"), at(1)).is_none(), "no news");
    assert!(is_granted(&memory, IMAGE, &[secret("a", "1")]));
    assert!(is_granted(&memory, "r.io/team/app:2", &[secret("a", "1")]), "a tag is no other image");
    for of_pod in [vec![], vec![secret("a", "2")], vec![secret("a", "")]] {
        assert_eq!(judge(&memory, IMAGE, &of_pod), ImageAccess::Unverified, "{of_pod:?}");
    }
    let other = [secret("x", "9"), secret("b", "1")];
    assert_eq!(judge(&memory, IMAGE, &other), ImageAccess::GrantedTo(secret("b", "1")));
    memory.note_pulled(IMAGE, ID, with("b", "1"), at(1));
    assert!(is_granted(&memory, IMAGE, &other));
    // New credentials of a Secret replace its earlier ones.
    memory.note_pulled(IMAGE, ID, with("b", "2"), at(1));
    assert!(is_granted(&memory, IMAGE, &[secret("b", "2")]));
    memory.note_pulled(IMAGE, ID, with("a", "3"), at(1));
    assert_eq!(judge(&memory, IMAGE, &[secret("c", "1")]), ImageAccess::Unverified);
    // Once the node can pull it, it is for every pod, and stays so.
    memory.note_pulled(IMAGE, ID, PulledWith::Node, at(1));
    assert!(memory.note_pulled(IMAGE, ID, with("a", "1"), at(1)).is_none());
    assert!(is_granted(&memory, IMAGE, &[]));
    let never = PullMemory::new(VerificationPolicy::NeverVerify);
    assert!(is_granted(&never, IMAGE, &[]));
}

#[test]
fn each_name_of_an_image_has_its_own_credentials() {
    let mut memory = memory();
    memory.note_pulled(IMAGE, ID, with("a", "1"), at(1));
    memory.note_pulled("busybox", ID, PulledWith::Node, at(1));
    let called = [IMAGE, "docker.io/library/busybox:latest", "mirror.io/app:1"].map(str::to_owned);
    let access = |image: &str| memory.judge(image, ID, &called, Vec::new);
    assert_eq!(access("docker.io/library/busybox:1"), ImageAccess::Granted);
    assert_eq!(access(IMAGE), ImageAccess::Unverified);
    // A name that the agent has not pulled was brought by another program, if the image has it.
    assert_eq!(access("mirror.io/app:1"), ImageAccess::Granted);
    for image in ["mirror.io/app:2", ID, "other.io/app:1"] {
        assert_eq!(access(image), ImageAccess::Unverified, "{image}");
    }
    // Now a pull under that name may have brought it.
    memory.begin("mirror.io/app:1", Before::Absent);
    let access = |image: &str| memory.judge(image, ID, &called, Vec::new);
    assert_eq!(access("mirror.io/app:1"), ImageAccess::Unverified);
    assert_eq!(access("busybox"), ImageAccess::Granted);
    let mut unknown = self::memory();
    unknown.note_pulled(IMAGE, ID, PulledWith::Unknown, at(1));
    assert_eq!(unknown.judge(IMAGE, ID, &called, Vec::new), ImageAccess::Unverified);
}

#[test]
fn many_secrets_with_the_same_credentials_are_not_all_written_down() {
    let mut memory = memory();
    for number in 0..100 {
        memory.note_pulled(IMAGE, ID, with(&format!("s{number}"), "1"), at(1));
    }
    assert!(is_granted(&memory, IMAGE, &[secret("another", "1")]));
}

#[test]
fn a_record_drops_its_oldest_secrets() {
    let mut memory = memory();
    for number in 0..=100 {
        let (name, hash) = (format!("s{number}"), number.to_string());
        assert!(memory.note_pulled(IMAGE, ID, with(&name, &hash), at(1)).is_some());
    }
    assert_eq!(judge(&memory, IMAGE, &[secret("s0", "0")]), ImageAccess::Unverified);
    for hash in ["1", "100"] {
        assert!(is_granted(&memory, IMAGE, &[secret(&format!("s{hash}"), hash)]), "{hash}");
    }
}

#[test]
fn records_have_the_shape_of_the_kubelet() {
    let mut memory = memory();
    let file = memory.note_pulled(IMAGE, ID, with("a", "1"), at(1)).unwrap();
    memory.note_pulled("busybox", ID, PulledWith::Node, at(1));
    memory.note_pulled("r.io/lost", ID, PulledWith::Unknown, at(1));
    let expected = serde_json::json!({
        "kind": "ImagePulledRecord",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "lastUpdatedTime": "2023-11-14T22:13:20Z",
        "imageRef": ID,
        "credentialMapping": {
            "r.io/team/app": { "kubernetesSecrets": [
                { "uid": "", "namespace": "default", "name": "a", "credentialHash": "1" },
            ] },
            "busybox": { "nodePodsAccessible": true },
            "r.io/lost": {},
        },
    });
    let written = text(&memory, &file);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), expected);
    let RecordFile::Pulled(name) = file else { panic!("{file:?}") };
    let mut next = self::memory();
    assert!(next.load_record(name.clone(), Some(written.as_bytes())));
    assert_eq!(text(&next, &RecordFile::Pulled(name)), written);

    let file = memory.begin(IMAGE, Before::Absent);
    assert_eq!(
        text(&memory, &file),
        "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"r.io/team/app:1\",\"kind\":\"ImagePullIntent\"}"
    );
    assert_eq!(
        file_name("docker.io/testing/test:latest"),
        "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56"
    );
}

#[test]
fn a_record_of_a_kubelet_keeps_what_it_has() {
    let text = format!(
        r#"{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"{ID}","credentialMapping":{{"r.io/team/app":{{"kubernetesSecrets":[{{"uid":"u","namespace":"default","name":"a","credentialHash":"1"}}],"kubernetesServiceAccounts":[{{"uid":"v","namespace":"n","name":"sa"}}]}}}}}}"#
    );
    let mut memory = memory();
    assert!(memory.load_record(file_name(ID), Some(text.as_bytes())));
    assert_eq!(
        judge(&memory, IMAGE, &[secret("a", "1")]),
        ImageAccess::GrantedTo(secret("a", "1")),
        "a Secret without uid is another one"
    );
    assert_eq!(judge(&memory, IMAGE, &[secret("a", "2")]), ImageAccess::Unverified);
    let file = memory.note_pulled(IMAGE, ID, with("a", "1"), at(1)).unwrap();
    let written = self::text(&memory, &file);
    for part in
        [r#""uid":"u""#, r#""uid":"""#, r#"[{"name":"sa","namespace":"n","uid":"v"}]"#, "v1beta1"]
    {
        assert!(written.contains(part), "{part}: {written}");
    }
}

#[test]
fn a_damaged_record_needs_a_pull_and_is_replaced_by_it() {
    let good = PulledRecord::new(ID).encode("2024-10-21T12:26:40Z");
    let good = String::from_utf8(good).unwrap();
    for bad in [
        String::new(),
        "{".to_owned(),
        good.replace("ImagePulledRecord", "ImagePullIntent"),
        good.replace("v1beta1", "v2"),
        good.replace(ID, "sha256:4567"),
        good.replace("\"credentialMapping\":{}", "\"credentialMapping\":{\"r.io/team/app\":true}"),
        good.replace("\"kind\"", "\"more\":1,\"kind\""),
    ] {
        let mut memory = memory();
        assert!(!memory.load_record(file_name(ID), Some(bad.as_bytes())), "{bad}");
        assert_eq!(judge(&memory, IMAGE, &[secret("a", "1")]), ImageAccess::Unverified);
        let file = RecordFile::Pulled(file_name(ID));
        assert_eq!(memory.content(&file, at(1)), FileContent::AsItIs);
        assert_eq!(memory.note_pulled(IMAGE, ID, PulledWith::Node, at(1)), Some(file));
        assert!(is_granted(&memory, IMAGE, &[]));
    }
    // One without any name is sound: what has pulled the image is not known.
    let mut memory = memory();
    assert!(memory.load_record(file_name(ID), Some(good.as_bytes())));
    assert_eq!(judge(&memory, IMAGE, &[]), ImageAccess::Unverified);
    assert!(!memory.load_intent(file_name(IMAGE), Some(b"{"), None));
}

#[test]
fn an_image_that_comes_during_a_pull_is_not_preloaded() {
    let mut memory = memory();
    memory.begin(IMAGE, Before::Absent);
    memory.begin(IMAGE, Before::Absent);
    assert_eq!(judge(&memory, IMAGE, &[]), ImageAccess::Unverified);
    assert_eq!(memory.end(IMAGE, PullEnd::Failed, at(2)), None, "the other one goes on");
    assert_eq!(judge(&memory, IMAGE, &[]), ImageAccess::Unverified);
    assert!(memory.end(IMAGE, PullEnd::Failed, at(3)).is_some());
    assert!(is_granted(&memory, IMAGE, &[]), "another program has brought it");

    // What was there before the pull did not come from it.
    memory.begin(IMAGE, Before::Present(ID.to_owned()));
    assert!(is_granted(&memory, IMAGE, &[]));
    assert_eq!(memory.judge(IMAGE, "sha256:new", &[], Vec::new), ImageAccess::Unverified);
    memory.end(IMAGE, PullEnd::CutOff, at(4));
    assert!(is_granted(&memory, IMAGE, &[]));
    assert_eq!(memory.judge(IMAGE, "sha256:new", &[], Vec::new), ImageAccess::Unverified);
    memory.begin(IMAGE, Before::Present("sha256:new".to_owned()));
    assert_eq!(memory.end(IMAGE, PullEnd::Failed, at(5)), None);
    assert_eq!(memory.judge(IMAGE, "sha256:new", &[], Vec::new), ImageAccess::Unverified);
    // Now it is certain that nothing has come from it.
    memory.begin(IMAGE, Before::Absent);
    assert_eq!(judge(&memory, IMAGE, &[]), ImageAccess::Unverified);
    assert!(memory.end(IMAGE, PullEnd::Failed, at(6)).is_some());
}

#[test]
fn the_images_on_the_node_settle_pulls_that_were_cut_off() {
    let began = Duration::from_secs(10);
    let intent = RecordFile::Pulling(file_name(IMAGE));
    let record = RecordFile::Pulled(file_name(ID));
    let other = [present("sha256:4567", "r.io/other:1")];
    let arrived = [present(ID, IMAGE), other[0].clone()];
    let cut_off = |before: Before, seconds| {
        let mut memory = memory();
        memory.begin(IMAGE, before);
        memory.end(IMAGE, PullEnd::CutOff, at(seconds));
        memory
    };

    let mut memory = cut_off(Before::Absent, 5);
    assert_eq!(memory.follow(&arrived, began, false, at(11)), [record.clone(), intent.clone()]);
    assert_eq!(judge(&memory, IMAGE, &[]), ImageAccess::Unverified);
    let mut memory = cut_off(Before::Present(ID.to_owned()), 5);
    assert_eq!(memory.follow(&arrived, began, false, at(11)), from_ref(&intent));
    assert!(is_granted(&memory, IMAGE, &[]));

    let mut memory = cut_off(Before::Absent, 5);
    assert!(memory.follow(&[], began, true, at(11)).is_empty());
    assert!(memory.follow(&other, began, false, at(11)).is_empty());
    assert_eq!(memory.follow(&other, began, true, at(11)), from_ref(&intent));
    assert!(is_granted(&memory, IMAGE, &[]));
    // A listing that began before the pull ended tells nothing of it.
    assert!(cut_off(Before::Absent, 10).follow(&other, began, true, at(11)).is_empty());
    let mut running = self::memory();
    running.begin(IMAGE, Before::Absent);
    assert!(running.follow(&arrived, began, true, at(11)).is_empty());
}

#[test]
fn an_image_may_have_come_from_a_pull_with_a_record_or_an_intent() {
    let (image, renamed) = (present(ID, IMAGE), present(ID, "r.io/other:1"));
    let mut memory = memory();
    assert!(!memory.has_pull_of(&image));
    memory.begin(IMAGE, Before::Present(ID.to_owned()));
    assert!(!memory.has_pull_of(&image), "it was there before");
    memory.begin(IMAGE, Before::Absent);
    assert!(memory.has_pull_of(&image) && !memory.has_pull_of(&renamed));
    memory.note_pulled(IMAGE, ID, with("a", "1"), at(1));
    assert!(memory.has_pull_of(&renamed));
    assert!(!memory.has_pull_of(&present("sha256:4567", "r.io/other:1")));
}

#[test]
fn records_of_images_that_are_gone_go() {
    let (began, file) = (Duration::from_secs(10), RecordFile::Pulled(file_name(ID)));
    let other = [present("sha256:4567", "r.io/other:1")];
    let pulled = |seconds| {
        let mut memory = memory();
        memory.note_pulled(IMAGE, ID, with("a", "1"), at(seconds));
        memory
    };
    assert!(pulled(5).follow(&[], began, true, at(11)).is_empty(), "the runtime lists nothing");
    assert!(pulled(5).follow(&[present(ID, IMAGE)], began, true, at(11)).is_empty());
    let mut memory = pulled(5);
    assert_eq!(memory.follow(&other, began, false, at(11)), from_ref(&file));
    assert_eq!(memory.content(&file, at(11)), FileContent::Nothing);
    assert_eq!(pulled(5).forget(&[ID], began), [file]);
    // It was pulled again meanwhile.
    assert!(pulled(10).follow(&other, began, true, at(11)).is_empty());
    assert!(pulled(10).forget(&[ID], began).is_empty());
    // The one for which it was pulled again may have no news for the record.
    let mut memory = pulled(5);
    assert!(memory.note_pulled(IMAGE, ID, with("a", "1"), at(10)).is_none());
    assert!(memory.forget(&[ID], began).is_empty());
}

#[tokio::test]
async fn files_follow_and_are_read_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("image_manager");
    let load = || PullRecords::load(dir.clone(), VerificationPolicy::default());
    let names = |part: &str| -> Vec<String> {
        let entries = fs::read_dir(dir.join(part)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let found = ImageFound {
        id: ID.to_owned(),
        names: vec![IMAGE.to_owned()],
        size_bytes: 1,
        uid: None,
        username: String::new(),
    };
    let records = load();
    assert!(!dir.exists(), "nothing is made before a pull");
    let pulling = records.begin(IMAGE, Before::Absent).await;
    assert_eq!(names("pulling"), [file_name(IMAGE)]);
    pulling.succeeded(ID, with("a", "1")).await;
    assert_eq!((names("pulling"), names("pulled")), (vec![], vec![file_name(ID)]));
    for (path, mode) in [
        (dir.clone(), 0o700),
        (dir.join("pulled"), 0o700),
        (dir.join("pulled").join(file_name(ID)), 0o600),
    ] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, mode);
    }
    let access = |records: &PullRecords, hash: &str| {
        records.judge(IMAGE, &found, || vec![secret("a", hash)])
    };
    assert_eq!(access(&load(), "1"), ImageAccess::Granted);
    assert_eq!(access(&load(), "2"), ImageAccess::Unverified);

    // A pull that is cut off, with what was there before it.
    drop(records.begin("r.io/b:1", Before::Present("sha256:8".to_owned())).await);
    assert_eq!(names("pulling").len(), 2);
    fs::write(dir.join("pulling/sha256-12.tmp"), "").unwrap();
    let again = load();
    assert_eq!(names("pulling").len(), 2, "unfinished files go");
    let b = ImageFound { id: "sha256:8".to_owned(), names: vec![], ..found.clone() };
    assert_eq!(again.judge("r.io/b:1", &b, Vec::new), ImageAccess::Granted);
    assert_eq!(again.judge("r.io/b:1", &found, Vec::new), ImageAccess::Unverified);
    // The next pull finds nothing there, and leaves no word of what was there once.
    drop(again.begin("r.io/b:1", Before::Absent).await);
    again.begin("r.io/c:1", Before::Absent).await.failed().await;
    again.follow(&[present("sha256:9", "r.io/d:1")], clock::now().boot, true).await;
    assert_eq!((names("pulling"), names("pulled")), (vec![], vec![]));

    // Files that others have taken away are written again, and damaged ones stop nothing.
    records.add(IMAGE, ID, PulledWith::Node).await;
    fs::remove_dir_all(&dir).unwrap();
    records.save_again().await;
    assert!(names("pulled").contains(&file_name(ID)));
    fs::write(dir.join("pulled").join(file_name(ID)), "{").unwrap();
    assert_eq!(access(&load(), "1"), ImageAccess::Unverified);
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("pulled"), "").unwrap();
    let blind = load();
    assert_eq!(access(&blind, "1"), ImageAccess::Unverified);
    blind.begin(IMAGE, Before::Absent).await.succeeded(ID, PulledWith::Node).await;
    assert_eq!(access(&blind, "1"), ImageAccess::Granted, "in memory alone");
    assert_eq!(names("pulling"), [file_name(IMAGE)], "the next run knows of the pull");
}

/// A Secret of the API server is known by its uid, whatever token it has by now.
#[test]
fn a_rotated_secret_of_the_api_server_still_grants_its_image() {
    let of_api =
        |uid: &str, hash: &str| PullSecret::new(uid, "default", "regcred", hash.to_owned());
    let mut memory = memory();
    memory.note_pulled(IMAGE, ID, PulledWith::Secret(of_api("u1", "h1")), at(1));
    let rotated = of_api("u1", "h2");
    assert_eq!(
        judge(&memory, IMAGE, from_ref(&rotated)),
        ImageAccess::GrantedTo(rotated.clone()),
        "and the record gets the new hash"
    );
    let several = [of_api("u1", "h0"), of_api("u1", "h1")];
    assert_eq!(judge(&memory, IMAGE, &several), ImageAccess::Granted, "h1 has pulled it");
    for other in [of_api("u2", "h2"), secret("regcred", "h2")] {
        assert_eq!(judge(&memory, IMAGE, from_ref(&other)), ImageAccess::Unverified);
    }
}
