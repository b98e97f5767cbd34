//! The dependency direction that ARCHITECTURE.md draws, enforced on the source text.
//!
//! CORE modules are pure and name only the modules listed for them. SHELL leaves never name each
//! other: they meet in `worker` and `agent`.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// CORE: module (`x` is src/x.rs and src/x/; `x/core` is that file) and the crate modules it may
/// name.
const CORE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("document", &["model"]),
    ("podspec", &["model"]),
    ("manifest", &["model", "document", "podspec"]),
    ("desired", &["model"]),
    ("admission", &["model", "podspec"]),
    ("plan", &["model", "podspec"]),
    ("status", &["model", "podspec", "plan"]),
    ("node", &["model", "admission"]),
    ("patch", &["model"]),
    ("mirror", &["model", "node", "patch"]),
    ("event/core", &["model"]),
    ("pleg/core", &["model"]),
    ("pressure/core", &["model", "podspec"]),
    ("source/core", &["model", "desired", "manifest"]),
    ("signals/core", &["model"]),
    ("image/gc/core", &["model"]),
];

/// SHELL leaves and the modules they may name besides every CORE module, `beneath`, `blocking`,
/// `clock` and `files`.
const SHELL: &[(&str, &[&str])] = &[
    ("cri", &[]),
    ("pleg", &["cri"]),
    ("source", &[]),
    ("store", &[]),
    ("cgroup", &[]),
    ("signals", &[]),
    ("volume", &[]),
    ("hostfiles", &[]),
    ("image", &["cri"]),
    ("event", &[]),
    ("serve", &["event"]),
    ("config", &["pressure"]),
];

/// Never named inside the pure core.
const CORE_BANNED: &[&str] = &[
    "tokio",
    "tonic",
    "prost",
    "kube::",
    "std::fs",
    "std::env",
    "SystemTime",
    "Instant",
    "async fn",
    "tracing",
];

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The files of a module; panics when the list names a module that is no file.
fn files_of(module: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root.join(module), &mut files);
    files.extend([root.join(format!("{module}.rs"))].into_iter().filter(|p| p.is_file()));
    assert!(!files.is_empty(), "the layering list names `{module}`, which is no file");
    files.retain(|f| f.file_name().is_some_and(|n| n != "tests.rs"));
    files
}

/// Code lines with their numbers: comments cut off, nothing from `#[cfg(test)]` on.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .take_while(|line| !line.trim_start().starts_with("#[cfg(test)]"))
        .enumerate()
        .map(|(n, line)| (n + 1, line.split("//").next().unwrap_or("")))
}

/// Top-level modules named through `crate::` in a line, `crate::{a, b}` included.
fn crate_modules(code: &str) -> Vec<String> {
    let mut named = Vec::new();
    for part in code.split("crate::").skip(1) {
        let list = part.strip_prefix('{').map_or(part, |rest| rest.split('}').next().unwrap_or(""));
        let names: Vec<&str> =
            if part.starts_with('{') { list.split(',').collect() } else { vec![list] };
        for name in names {
            let top: String =
                name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !top.is_empty() {
                named.push(top);
            }
        }
    }
    named
}

#[test]
fn core_modules_are_pure_and_name_only_what_is_allowed() {
    let mut bad = Vec::new();
    for (module, allowed) in CORE {
        for file in files_of(module) {
            let text = fs::read_to_string(&file).unwrap();
            for (n, code) in code_lines(&text) {
                for banned in CORE_BANNED {
                    if code.contains(banned) {
                        bad.push(format!("{}:{n}: names `{banned}`", file.display()));
                    }
                }
                for top in crate_modules(code) {
                    if Some(top.as_str()) != module.split('/').next()
                        && !allowed.contains(&top.as_str())
                    {
                        bad.push(format!("{}:{n}: uses crate::{top}", file.display()));
                    }
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn shell_leaves_do_not_name_each_other() {
    let core: Vec<&str> = CORE
        .iter()
        .map(|(m, _)| m.split('/').next().unwrap_or(m))
        .chain(["beneath", "blocking", "clock", "files"])
        .collect();
    let leaves: Vec<&str> = SHELL.iter().map(|(m, _)| *m).collect();
    let mut bad = Vec::new();
    for (module, allowed) in SHELL {
        for file in files_of(module) {
            let text = fs::read_to_string(&file).unwrap();
            for (n, code) in code_lines(&text) {
                for top in crate_modules(code) {
                    let top = top.as_str();
                    let ours = top == *module || allowed.contains(&top);
                    let config_of_leaf = top == "config";
                    let pure = core.contains(&top) && !leaves.contains(&top);
                    if !ours && !pure && !config_of_leaf {
                        bad.push(format!("{}:{n}: uses crate::{top}", file.display()));
                    }
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
