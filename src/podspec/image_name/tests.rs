use super::*;

#[test]
fn a_name_stands_for_all_that_runtimes_list() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (image, full) in [
        ("busybox", vec!["busybox", "docker.io/library/busybox:latest"]),
        ("reg.example.com/a:v1", vec!["reg.example.com/a:v1", "reg.example.com/a:v1"]),
        ("sha256:12", vec!["sha256:12", "docker.io/library/sha256:12"]),
        ("no name", vec!["no name"]),
    ] {
        assert_eq!(full_names(image), full);
    }
    let id = "b".repeat(64);
    assert_eq!(full_names(&id), [id.clone(), format!("sha256:{id}")]);
    let both = full_names(&format!("a:1@{digest}"));
    assert_eq!(
        both[1..],
        ["docker.io/library/a:1".to_owned(), format!("docker.io/library/a@{digest}")]
    );
}

#[test]
fn names_get_a_tag_or_a_reason() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (image, normal, repo) in [
        ("busybox", "busybox:latest", "docker.io/library/busybox"),
        ("busybox:1.36", "busybox:1.36", "docker.io/library/busybox"),
        ("team/app", "team/app:latest", "docker.io/team/app"),
        ("docker.io/a", "docker.io/a:latest", "docker.io/library/a"),
        ("index.docker.io/a/b", "index.docker.io/a/b:latest", "docker.io/a/b"),
        ("localhost/x", "localhost/x:latest", "localhost/x"),
        ("localhost:5000/x/y:v1_2.3-4", "localhost:5000/x/y:v1_2.3-4", "localhost:5000/x/y"),
        ("[fd00::1]:5000/x", "[fd00::1]:5000/x:latest", "[fd00::1]:5000/x"),
        ("Reg.example.com/a__b/c-_d", "", ""),
        (
            "reg.example.com/a__b/c--d/e.f",
            "reg.example.com/a__b/c--d/e.f:latest",
            "reg.example.com/a__b/c--d/e.f",
        ),
        ("MYHOST/app", "MYHOST/app:latest", "MYHOST/app"),
    ] {
        if normal.is_empty() {
            assert_eq!(normalize(image), Err(NameError::Format), "{image}");
        } else {
            assert_eq!(normalize(image).unwrap(), normal);
            assert_eq!(repository(image).unwrap(), repo);
            let untagged = untagged(image).unwrap();
            assert!(image.starts_with(untagged) && repository(untagged).unwrap() == repo);
        }
    }
    let with_digest = format!("reg.example.com/a:v1@{digest}");
    assert_eq!(normalize(&with_digest).unwrap(), with_digest);
    assert_eq!(repository(&with_digest).unwrap(), "reg.example.com/a");
    for (image, name) in [
        (&*with_digest, "reg.example.com/a"),
        ("busybox:1", "busybox"),
        ("localhost:5000/a/b", "localhost:5000/a/b"),
    ] {
        assert_eq!(untagged(image), Ok(name));
    }

    let error = |image: &str| normalize(image).unwrap_err().to_string();
    for image in [
        "",
        " ",
        "a b",
        "/a",
        "a/",
        "a//b",
        "a:",
        "a:-x",
        "a:b:c",
        "a@sha256:12",
        "a@b@c",
        "-a",
        "a_",
        "a.",
        "a..b",
        "a___b",
        "reg-.example.com/a",
        "reg.example.com:x/a",
        ":tag",
        "@",
        "http://reg/a",
        "a\n",
        "ä",
    ] {
        assert_eq!(error(image), "invalid reference format", "{image:?}");
    }
    assert_eq!(
        error("MyApp"),
        "invalid reference format: repository name (library/MyApp) must be lowercase"
    );
    assert_eq!(
        error("reg.io/A/b:v1"),
        "invalid reference format: repository name (A/b) must be lowercase"
    );
    assert!(error(&"a".repeat(64)).ends_with("cannot specify 64-byte hexadecimal strings"));
    assert!(error(&"x".repeat(256)).starts_with("repository name must not be more than 255"));
    assert_eq!(error(&format!("a:{}", "t".repeat(129))), "invalid reference format");
    assert_eq!(error(&format!("a@md5:{}", "a".repeat(32))), "unsupported digest algorithm");
    assert_eq!(error(&format!("a@sha256:{}", "a".repeat(63))), "invalid checksum digest length");
}
