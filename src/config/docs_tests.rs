//! Makes the tables of docs/configuration.md from the tables of this module and fails when the file
//! says something else. `UPDATE_DOCS=1 cargo test --lib config` writes it.

use super::{
    fields::{KUBELET, NODELET, leaves},
    flags::{Effect, flags},
};
use crate::document::{Field, Support, Type};
use std::{fmt::Write, fs, path::Path};

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Bool => "bool".to_owned(),
        Type::String => "text".to_owned(),
        Type::Int32 | Type::Int64 => "number".to_owned(),
        Type::Float => "decimal".to_owned(),
        Type::IntOrString => "number or text".to_owned(),
        Type::Quantity => "quantity".to_owned(),
        Type::Duration => "duration".to_owned(),
        Type::Time => "time".to_owned(),
        Type::List(item) => format!("list of {}", type_name(item)),
        Type::Map(item) => format!("map of {}", type_name(item)),
        Type::Object(_) => "object".to_owned(),
        Type::Any => "number or duration".to_owned(),
    }
}

fn support(support: Support) -> &'static str {
    match support {
        Support::Yes => "yes",
        Support::Differs => "differs",
        Support::Ignored => "no, reported",
        Support::No => "no, an error",
    }
}

fn field_table(fields: &'static [Field]) -> String {
    let mut out =
        "| field | type | default | flag | acted on | |\n|---|---|---|---|---|---|\n".to_owned();
    for (path, field) in leaves(fields) {
        let flag = field.setting.and_then(|setting| setting.flag);
        let flag = flag.map_or(String::new(), |flag| format!("`--{flag}`"));
        let default = field.default().map_or(String::new(), code);
        let ty = type_name(&field.ty);
        let (here, note) = (support(field.support), field.note);
        writeln!(out, "| `{path}` | {ty} | {default} | {flag} | {here} | {note} |").unwrap();
    }
    out
}

/// Values in code style, sentences as they are.
fn code(default: &str) -> String {
    if default.contains(' ') { default.to_owned() } else { format!("`{default}`") }
}

fn flag_tables() -> String {
    let mut out = "| flag | default | sets | |\n|---|---|---|---|\n".to_owned();
    for flag in flags().iter().filter(|flag| flag.is_acted_on()) {
        let sets = flag.target().map_or(String::new(), |target| format!("`{}`", target.path));
        let default = flag.default().map_or(String::new(), code);
        let usage = format!("`--{} {}`", flag.name, flag.value_name());
        writeln!(out, "| {usage} | {default} | {sets} | {} |", flag.help()).unwrap();
    }
    out.push_str("\nThe kubelet's other flags:\n\n| flag | | why |\n|---|---|---|\n");
    for flag in flags().iter().filter(|flag| !flag.is_acted_on()) {
        let refused = match &flag.effect {
            Effect::Refused(..) => true,
            Effect::Sets(target) => target.field.support == Support::No,
            Effect::Own(..) | Effect::Ignored(..) => false,
        };
        let answer = if refused { "an error" } else { "reported" };
        writeln!(out, "| `--{}` | {answer} | {} |", flag.name, flag.help()).unwrap();
    }
    out
}

/// `text` with what stands between the markers of `name` replaced.
fn replace(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let from = text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let to = text.find(&end).unwrap_or_else(|| panic!("no {end}"));
    format!("{}\n{table}\n{}", &text[..from], &text[to..])
}

#[test]
fn the_documentation_is_made_from_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut wanted = replace(&text, "kubelet", &field_table(KUBELET));
    wanted = replace(&wanted, "nodelet", &field_table(NODELET));
    wanted = replace(&wanted, "flags", &flag_tables());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(
        text == wanted,
        "docs/configuration.md is out of date: run UPDATE_DOCS=1 cargo test --lib config"
    );
}
