//! Parsing by tables (the expected values are what `sigs.k8s.io/yaml` makes of the same texts),
//! hostile texts, and the walk.

use super::{Document, Field, FindingKind, Node, READING, Type, nearest, parse, typed, walk};
use crate::model::{Position, short_digest};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn read(text: &str) -> Json {
    let mut documents = parse(text.as_bytes()).unwrap();
    assert_eq!(documents.len(), 1, "{text:?}");
    documents.remove(0).root.to_json()
}

fn refused(text: &[u8]) -> String {
    parse(text).unwrap_err().to_string()
}

/// Some of what the other tests have in tables, in one value.
#[test]
fn another_meaning_of_texts_has_another_name() {
    let texts = [
        "a: [0644, 0o17, 1_000, 1.0, 100m, 1:30, 2001-01-01, yes, off, ~, '', !!str 80]",
        "a: &x {b: 1}\nc: {<<: *x, a: 2}\ne: *x",
        "a: |\n  text\n\nb: >-\n  folded\n  text\n---\nc: \"\\u00e9\"\n...\n",
        "{\"a\": 1e3, \"b\": null}",
    ];
    let documents = texts.iter().flat_map(|text| parse(text.as_bytes()).unwrap());
    let meaning: String = documents.map(|document| document.root.to_json().to_string()).collect();
    let digest = short_digest(meaning.as_bytes());
    assert_eq!(
        (READING, &*digest),
        ("1", "fc79aa583473cc1c5d3bbcba12651823"),
        "another name for: {meaning}"
    );
}

#[test]
fn plain_scalars_mean_what_they_mean_to_kubernetes() {
    for (text, expected) in [
        // Numbers.
        ("0644", json!(420)),
        ("08", json!(8)),
        ("0o17", json!(15)),
        ("0x1F", json!(31)),
        ("-0b101", json!(-5)),
        ("1_000", json!(1000)),
        ("+1", json!(1)),
        ("1.", json!(1)),
        ("1.0", json!(1)),
        ("1e3", json!(1000)),
        ("-.5", json!(-0.5)),
        ("-0.0", json!(0)),
        ("18446744073709551615", json!(u64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        // Text that looks like numbers.
        ("1e400", json!("1e400")),
        ("100m", json!("100m")),
        ("1:30", json!("1:30")),
        ("2001-01-01", json!("2001-01-01")),
        ("0o", json!("0o")),
        ("--1", json!("--1")),
        ("1e", json!("1e")),
        ("._5", json!("._5")),
        // Bools and null.
        ("y", json!(true)),
        ("Yes", json!(true)),
        ("ON", json!(true)),
        ("N", json!(false)),
        ("off", json!(false)),
        ("yEs", json!("yEs")),
        ("~", Json::Null),
        ("Null", Json::Null),
        ("nULL", json!("nULL")),
        ("=", json!("=")),
        // Quotes and tags.
        ("'yes'", json!("yes")),
        ("\"0644\"", json!("0644")),
        ("!!str 80", json!("80")),
        ("!!int \"80\"", json!(80)),
        ("! 12", json!("12")),
        ("\"a\\n\\x41\\u00e9\\/\\ud83d\\ude00\"", json!("a\nA\u{e9}/\u{1f600}")),
        ("'it''s'", json!("it's")),
        ("|\n  lit\n  eral\n", json!("lit\neral\n")),
        (">-\n  fold\n  ed\n\n  more\n", json!("fold ed\nmore")),
    ] {
        assert_eq!(read(&format!("x: {text}")), json!({ "x": expected }), "{text}");
    }
}

#[test]
fn collections_keys_anchors_and_merges() {
    for (text, expected) in [
        (
            "{1: a, true: b, 1.5: c, no: d}",
            json!({"1": "a", "true": "b", "1.5": "c", "false": "d"}),
        ),
        ("[a, [b], {c: d}, ]", json!(["a", ["b"], {"c": "d"}])),
        ("a: &x {b: 1}\nc: *x", json!({"a": {"b": 1}, "c": {"b": 1}})),
        (
            "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  b: 3",
            json!({"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}),
        ),
        ("<<: [{a: 1}, {a: 2, b: 3}]\nc: 4", json!({"a": 1, "b": 3, "c": 4})),
        ("'<<': 1", json!({"<<": 1})),
        ("a:\r\n- b\r\n", json!({"a": ["b"]})),
        ("{\n\t\"a\": [1,\n\t\t2]\n}", json!({"a": [1, 2]})),
        ("{\"a\":1,\"b\":{\"c\":[]}}", json!({"a": 1, "b": {"c": []}})),
        ("\u{feff}a: 1", json!({"a": 1})),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn errors_have_a_place() {
    let long = format!("x: {}", "a".repeat(super::MAX_TEXT_BYTES));
    for (text, expected) in [
        (
            &b"a: b\n c: d"[..],
            "line 2, column 3: does not parse: mapping values are not allowed in this context",
        ),
        (
            b"a:\n\tb: c",
            "line 2, column 2: does not parse: tabs disallowed within this context (block indentation)",
        ),
        (b"a: [1", "line 1, column 4: does not parse: unclosed bracket '['"),
        (b"a: *x", "line 1, column 4: does not parse: while parsing node, found unknown anchor"),
        (b"a: &x [*x]", "line 1, column 8: alias of something that contains it"),
        (b"a: .nan", "line 1, column 4: .nan is not a number that JSON can hold"),
        (
            b"a: !env HOME",
            "line 1, column 9: a tag (text that begins with '!') is not supported; if it is a value, put it in quotes",
        ),
        (b"a: !!int 1.5", "line 1, column 10: is not a value of the tag before it"),
        (b"[a]: b", "line 1, column 1: a key must be text, not a list or a mapping"),
        (b"~: b", "line 1, column 1: a key must not be empty"),
        (b"<<: 1", "line 1, column 5: merge key '<<' needs a mapping or a list of mappings"),
        (b"a: b\nc: \xff", "line 2, column 4: is not UTF-8 text (byte 0xff)"),
        ("é: \0".as_bytes(), "line 1, column 4: control character U+0000 is not allowed"),
        (b"\xff\xfea\0", "line 1, column 1: is not UTF-8 text (byte 0xff)"),
        (long.as_bytes(), "is larger than 4 MiB"),
    ] {
        assert_eq!(
            refused(text),
            expected,
            "{}",
            String::from_utf8_lossy(&text[..text.len().min(40)])
        );
    }
}

#[test]
fn documents_are_counted_and_empty_ones_dropped() {
    let text = b"# c\n---\na: 1\n---\n---\n# d\n---\n\nb: 2\n...\n";
    let places: Vec<(usize, usize)> =
        parse(text).unwrap().iter().map(|d: &Document| (d.index, d.line)).collect();
    assert_eq!(places, [(0, 3), (1, 9)]);
    assert_eq!(parse(b"").unwrap(), []);
}

#[test]
fn every_key_and_value_has_a_place() {
    let text = "a:\n  bé: [1, {c: 'x'}]\n";
    let root = parse(text.as_bytes()).unwrap().remove(0).root;
    for (path, line, column) in
        [("a", 2, 3), ("a.bé", 2, 7), ("a.bé[0]", 2, 8), ("a.bé[1].c", 2, 15), ("a.bé[7].x", 2, 7)]
    {
        assert_eq!(root.nearest_to(path).position, Position { line, column }, "{path}");
    }
    let entry = &root.get("a").unwrap().entries()[0];
    assert_eq!(entry.key_position, Position { line: 2, column: 3 });
}

/// Texts that cost a naive reader its memory, its stack or an afternoon.
#[test]
fn hostile_texts_are_refused_in_bounded_time() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{below}]\n");
    }
    let mut texts = format!("a0: &a0 {}\n", "x".repeat(100_000));
    for line in 0..2000 {
        texts += &format!("b{line}: *a0\n");
    }
    let merges =
        format!("a: &a {{{}}}\nb: [{}]", "k: &b {}, ".repeat(100), "{<<: *a}, ".repeat(20_000));
    for (what, text) in [
        ("alias bomb", bomb),
        ("large aliases", texts),
        ("merges", merges),
        ("open brackets", "[".repeat(200_000)),
        ("open braces", "{".repeat(200_000)),
        ("flow maps", "{a: ".repeat(100_000)),
        ("deep list", "- ".repeat(100_000)),
        ("deep keys", "? ".repeat(100_000)),
        ("deep map", (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect()),
        ("many values", "- a\n".repeat(400_000)),
        ("many documents", "---\na\n".repeat(400_000)),
        ("nested anchors", "&a [".repeat(10_000)),
    ] {
        assert!(parse(text.as_bytes()).is_err(), "{what}");
    }
    // Long, and harmless.
    for (what, text) in [
        ("one long line", format!("a: {}", "x ".repeat(500_000))),
        ("one long quoted text", format!("a: \"{}\"", "\\n".repeat(300_000))),
        ("a long comment", format!("a: b #{}", "#".repeat(1_000_000))),
        ("many comments", format!("{}a: b", "# c\n".repeat(200_000))),
        ("blank lines", format!("a:{}b", "\n ".repeat(300_000))),
        ("many keys", (0..24_000).map(|n| format!("k{n}: v\n")).collect()),
    ] {
        assert_eq!(parse(text.as_bytes()).map(|d| d.len()), Ok(1), "{what}");
    }
}

static INNER: &[Field] = &[Field::yes("name", Type::String), Field::yes("port", Type::Int32)];
static TABLE: &[Field] = &[
    Field::yes("any", Type::Any),
    Field::yes("duration", Type::Duration),
    Field::yes("enabled", Type::Bool),
    Field::yes("float", Type::Float),
    Field::yes("intOrString", Type::IntOrString),
    Field::yes("items", Type::List(&Type::Object(INNER))),
    Field::yes("labels", Type::Map(&Type::String)),
    Field::yes("long", Type::Int64),
    Field::no("never", Type::List(&Type::Any), "not here"),
    Field::ignored("quiet", Type::Object(QUIET), "no matter"),
    Field::yes("size", Type::Quantity),
    Field::yes("time", Type::Time),
];
static QUIET: &[Field] = &[Field::ignored("more", Type::Bool, "no matter either")];

fn findings(text: &str) -> Vec<String> {
    let root = parse(text.as_bytes()).unwrap().remove(0).root;
    walk(&root, TABLE, "").into_iter().map(|f| format!("{:?} {}", f.kind, f.problem)).collect()
}

#[test]
fn the_walk_finds_everything_at_once() {
    let text = "\
enabled: 'yes'
duration: 5
float: x
intOrString: 1.5
items: [{name: a, nmae: b, name: c}, {port: 3000000000}, x]
labels: {a: 1, b: x, a: y, c: }
long: 1e30
never: [1]
quiet: {more: true, evenMore: 1}
size: 1Gb
time: today
any: {x: {v: 1, v: 2}, z: [{w: 1, w: 1}]}
";
    assert_eq!(
        findings(text),
        [
            "WrongType line 1, column 10: enabled: Invalid value: \"yes\": must be true or false",
            "WrongType line 2, column 11: duration: Invalid value: 5: must be a duration with units, like 90s, 1m30s or 100ms",
            "WrongType line 3, column 8: float: Invalid value: \"x\": must be a number",
            "WrongType line 4, column 14: intOrString: Invalid value: 1.5: must be a whole number or text",
            "Unknown line 5, column 19: items[0].nmae: unknown field, did you mean \"name\"?",
            "Duplicate line 5, column 28: items[0].name: Duplicate value: \"name\": this key was written before, at line 5",
            "WrongType line 5, column 45: items[1].port: Invalid value: 3000000000: must be a whole number between -2147483648 and 2147483647",
            "WrongType line 5, column 58: items[2]: Invalid value: \"x\": must be an object",
            "WrongType line 6, column 13: labels[a]: Invalid value: 1: must be text; YAML reads this as a number, put it in quotes",
            "Duplicate line 6, column 22: labels[a]: Duplicate value: \"a\": this key was written before, at line 6",
            "WrongType line 7, column 7: long: Invalid value: 1e+30: must be a whole number",
            "Unsupported line 8, column 1: never: Unsupported: not here",
            "Ignored line 9, column 1: quiet: ignored: no matter",
            "Unknown line 9, column 21: quiet.evenMore: unknown field",
            "WrongType line 10, column 7: size: Invalid value: \"1Gb\": must be a quantity: a number, with a suffix like m, k, Mi or Gi where needed",
            "WrongType line 11, column 7: time: Invalid value: \"today\": must be a time like 2026-01-31T12:00:00Z",
            "Duplicate line 12, column 17: any.x.v: Duplicate value: \"v\": this key was written before, at line 12",
            "Duplicate line 12, column 35: any.z[0].w: Duplicate value: \"w\": this key was written before, at line 12",
        ]
    );
}

#[test]
fn null_and_empty_mean_not_set() {
    assert_eq!(findings("{enabled: null, never: [], quiet: ~, size: , labels: {}}"), [""; 0]);
}

#[test]
fn only_so_much_is_said() {
    let text: String = (0..24_000).map(|n| format!("unknown{n}: v\n")).collect();
    assert_eq!(findings(&text).len(), 100);
}

#[test]
fn typed_keeps_what_fits() {
    let text = "{enabled: 'x', size: 1.5, labels: {a: , b: c}, never: [1], unknown: 1, \
                items: [{name: a, port: x}, null, {port: 1}], quiet: {more: on}}";
    let root = parse(text.as_bytes()).unwrap().remove(0).root;
    assert_eq!(
        typed(&root, TABLE),
        json!({"size": "1.5", "labels": {"a": "", "b": "c"}, "quiet": {"more": true},
               "items": [{"name": "a"}, {}, {"port": 1}]})
    );
}

#[test]
fn misspellings_are_recognised() {
    let names = ["image", "imagePullPolicy", "env", "ports"];
    for (written, expected) in [
        ("imgae", Some("image")),
        ("Image", Some("image")),
        ("imagepullpolicy", Some("imagePullPolicy")),
        ("port", Some("ports")),
        ("evn", Some("env")),
        ("command", None),
        ("", None),
    ] {
        assert_eq!(nearest(written, names.into_iter()), expected, "{written}");
    }
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        "[ -~äß\\n\\t]{0,12}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::btree_map("[ -~ä]{0,8}", inner, 0..5)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// JSON is read as what it says, compact or laid out.
    #[test]
    fn json_is_read_as_written(value in any_json()) {
        let root = json!({ "x": value });
        for text in [root.to_string(), serde_json::to_string_pretty(&root).unwrap()] {
            prop_assert_eq!(&read(&text), &root);
        }
        prop_assert_eq!(Node::from_json(&root).to_json(), root);
    }

    /// What a serializer writes is read back.
    #[test]
    fn yaml_is_read_as_written(value in any_json()) {
        let root = json!({ "x": value });
        let text = serde_saphyr::to_string(&root).unwrap();
        prop_assert_eq!(read(&text), root);
    }

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(documents) = parse(&bytes) {
            for document in documents {
                let findings = walk(&document.root, TABLE, "");
                prop_assert!(findings.iter().all(|f| f.kind != FindingKind::Unsupported || !f.problem.path.is_empty()));
            }
        }
    }
}
