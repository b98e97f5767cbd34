#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::model::SourceKind;

fn read(text: &str) -> DecodedObject {
    let document = document::parse(text.as_bytes()).unwrap().remove(0);
    let origin =
        Origin { source: SourceKind::File, location: "/m/a.yaml".into(), document: 0, line: 1 };
    decode(&document.root, kind(&document.root).unwrap(), &origin)
}

/// `key=value`, with `bytes:` before what is no text.
fn data(text: &str) -> Vec<String> {
    let data = read(text).result.unwrap().data;
    let shown = data.iter().map(|(key, datum)| match datum {
        Datum::Text(text) => format!("{key}={text}"),
        Datum::Binary(bytes) => format!("{key}=bytes:{bytes:?}"),
    });
    shown.collect()
}

fn problems(text: &str) -> Vec<String> {
    read(text).result.unwrap_err().iter().map(ToString::to_string).collect()
}

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n";
const SECRETS: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: web, namespace: shop}\n";

#[test]
fn config_maps_hold_text_and_bytes() {
    let text = format!("{CONFIG}data: {{a: '1', b.conf: \"x\\n\"}}\nbinaryData: {{c: aGk=}}\n");
    assert_eq!(data(&text), ["a=1", "b.conf=x\n", "c=bytes:[104, 105]"]);
    let object = read(&text).result.unwrap();
    assert_eq!(object.key.to_string(), "ConfigMap default/web");
    assert!(!object.immutable);
    assert!(data(CONFIG).is_empty(), "a ConfigMap may be empty");
    let nothing = format!("{CONFIG}data: null\nimmutable: true\n");
    assert!(read(&nothing).result.unwrap().immutable);
}

#[test]
fn secrets_hold_what_their_base64_says() {
    let text = format!("{SECRETS}data: {{a: \"aG\\nk=\", b: /w==, c: b2xk}}\n");
    let with_text = format!("{text}stringData: {{c: new, d: ''}}\n");
    assert_eq!(data(&with_text), ["a=hi", "b=bytes:[255]", "c=new", "d="]);
    let object = read(&with_text).result.unwrap();
    assert_eq!(object.key.to_string(), "Secret shop/web");
    assert_eq!(&*object.secret_type, "Opaque");
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, expected) in [
        (
            format!("{CONFIG}dta: {{a: b}}\n"),
            "line 4, column 1: dta: unknown field, did you mean \"data\"?",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\n".to_owned(),
            "line 1, column 1: metadata.name: Required value",
        ),
        (
            format!("{CONFIG}data: {{a: 1}}\n"),
            "line 4, column 11: data[a]: Invalid value: 1: must be text",
        ),
        (
            format!("{CONFIG}data: {{a/b: x}}\n"),
            "line 4, column 13: data[a/b]: Invalid value: \"a/b\": a valid config key must consist \
             of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name', or 'KEY_NAME', or \
             'key-name')",
        ),
        (
            format!("{CONFIG}data: {{..a: x}}\n"),
            "line 4, column 13: data[..a]: Invalid value: \"..a\": must not start with '..'",
        ),
        (
            format!("{CONFIG}data: {{a: x}}\nbinaryData: {{a: aGk=}}\n"),
            "line 4, column 11: data[a]: Invalid value: \"a\": duplicate of key present in \
             binaryData",
        ),
        (
            format!("{CONFIG}binaryData: {{a: 'no base64'}}\n"),
            "line 4, column 17: binaryData[a]: Invalid value: must be base64 with padding",
        ),
        (
            CONFIG.replace("web", "Web"),
            "line 3, column 18: metadata.name: Invalid value: \"Web\": a lowercase RFC 1123 \
             subdomain must consist",
        ),
        (
            format!("{SECRETS}type: kubernetes.io/tls\nstringData: {{tls.crt: x}}\n"),
            "line 1, column 1: data[tls.key]: Required value",
        ),
        (
            format!("{SECRETS}type: kubernetes.io/basic-auth\n"),
            "line 1, column 1: data[username]: Required value: must have username or password",
        ),
    ] {
        let found = problems(&text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}: {found:?}");
    }
    let large = format!("{CONFIG}data: {{a: {0}, b: {0}}}\n", "x".repeat(600_000));
    let found = problems(&large);
    assert_eq!(found, ["line 4, column 7: data: Too long: may not be more than 1048576 bytes"]);
}

#[test]
fn no_message_repeats_data_of_a_secret() {
    for (field, value) in [
        ("data", "hunter2"),
        ("data", "[hunter2]"),
        ("data", "{hunter2: hunter2}"),
        ("stringData", "[hunter2]"),
        ("stringData", "{x: hunter2}"),
        ("stringData", "72457.5"),
        ("data", "72457"),
        ("data", "true"),
    ] {
        let found = problems(&format!("{SECRETS}{field}: {{password: {value}}}\n"));
        assert!(!found.is_empty(), "{field}: {value}");
        let shown = found.join("\n");
        assert!(!shown.contains("hunter2") && !shown.contains("7245"), "{shown}");
        assert!(!shown.contains("true"), "{shown}");
        assert!(shown.contains("password"), "the key is named: {shown}");
    }
    for whole in ["hunter2", "[hunter2]"] {
        let found = problems(&format!("{SECRETS}stringData: {whole}\n")).join("\n");
        assert!(!found.contains("hunter2"), "{found}");
    }
    let json = format!(
        "{SECRETS}type: kubernetes.io/dockerconfigjson\nstringData: {{.dockerconfigjson: hunter2}}\n"
    );
    let found = problems(&json);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].ends_with("data[.dockerconfigjson]: Invalid value: must be JSON"),
        "{found:?}"
    );
    let object = read(&format!("{SECRETS}stringData: {{password: hunter2}}\n"));
    assert!(!format!("{object:?}").contains("hunter2"), "Debug shows it");
}

#[test]
fn bookkeeping_of_an_api_server_is_a_warning() {
    let text = CONFIG.replace("{name: web}", "{name: web, uid: u, resourceVersion: '1'}");
    let found = read(&text);
    assert!(found.result.is_ok());
    let paths: Vec<&str> = found.warnings.iter().map(|w| w.path.as_str()).collect();
    assert_eq!(paths, ["metadata.uid", "metadata.resourceVersion"]);
}
