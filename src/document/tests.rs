use super::*;

#[test]
fn reads_scalars_like_go_yaml() {
    let documents = parse(b"a: 0644\nb: yes\nc: 'yes'\nd: 1.0\ne: ~\nf: 1_000\n").unwrap();
    assert_eq!(
        documents[0].root.to_json(),
        serde_json::json!({"a": 420, "b": true, "c": "yes", "d": 1, "e": null, "f": 1000})
    );
}
