//! The directions of dependency that ARCHITECTURE.md draws, enforced on the source text.
//!
//! The test follows the `mod` declarations from src/lib.rs, leaves out what `#[cfg(test)]` marks,
//! and reads every path of the rest: `use` trees of any shape, and paths in code and in the
//! arguments of macros. `self` and `super` are resolved. A name that a module imports is judged
//! where it is imported.

#![allow(clippy::unwrap_used, reason = "tests")]

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The kind of a top-level module decides which other modules it may name.
#[derive(Clone, Copy)]
enum Kind {
    /// Pure decisions and data: names the listed CORE modules and nothing of [`IMPURE`].
    Core(&'static [&'static str]),
    /// One kind of I/O: names CORE modules and SHARED ones.
    Leaf,
    /// A mechanism that several modules share: names CORE modules and SHARED ones.
    Shared,
    /// One thing that the agent does for its users: names CORE modules, leaves and SHARED ones.
    /// The published types of `worker` that a capability needs are listed in [`EXCEPTIONS`].
    Capability,
    /// The composition root: names everything.
    Agent,
    /// Arguments, settings and log output: names CORE modules, leaves, SHARED modules and edges.
    Edge,
}

use Kind::{Agent, Capability, Core, Edge, Leaf, Shared};

/// Every top-level module of src/.
const MODULES: &[(&str, Kind)] = &[
    ("model", Core(&[])),
    ("document", Core(&["model"])),
    ("podspec", Core(&["model"])),
    ("manifest", Core(&["model", "document", "podspec"])),
    ("desired", Core(&["model"])),
    ("admission", Core(&["model", "podspec"])),
    ("plan", Core(&["model", "podspec"])),
    ("status", Core(&["model", "podspec", "plan"])),
    ("presentation", Core(&["model", "status"])),
    ("status_page", Core(&["model", "presentation"])),
    ("node", Core(&["model", "admission"])),
    ("patch", Core(&["model"])),
    ("echo", Core(&[])),
    ("mirror", Core(&["model", "desired", "node", "patch", "echo"])),
    ("pressure", Core(&["model", "podspec"])),
    ("probe", Core(&["model", "podspec", "plan"])),
    ("log_rotation", Core(&["model"])),
    ("cri", Leaf),
    ("pleg", Leaf),
    ("source", Leaf),
    ("store", Leaf),
    ("cgroup", Leaf),
    ("volume", Leaf),
    ("hostfiles", Leaf),
    ("image", Leaf),
    ("signals", Leaf),
    ("event", Leaf),
    ("handler", Leaf),
    ("logs", Leaf),
    ("machine", Leaf),
    ("measure", Leaf),
    ("beneath", Shared),
    ("blocking", Shared),
    ("certificate", Shared),
    ("clock", Shared),
    ("dbus", Shared),
    ("files", Shared),
    ("keep_alive", Shared),
    ("metrics", Shared),
    ("names", Shared),
    ("program", Shared),
    ("publish", Shared),
    ("verifier", Shared),
    ("notify", Leaf),
    ("api", Capability),
    ("eviction", Capability),
    ("housekeeping", Capability),
    ("log_rotator", Capability),
    ("machine_report", Capability),
    ("node_view", Capability),
    ("prober", Capability),
    ("serve", Capability),
    ("shutdown", Capability),
    ("stats", Capability),
    ("systemd", Capability),
    ("worker", Capability),
    ("agent", Agent),
    ("cli", Edge),
    ("config", Edge),
    ("logging", Edge),
];

/// Pure modules inside a leaf: they obey the rules of CORE and name what is listed for them, which
/// may be data types of their leaf.
const CORE_PARTS: &[(&str, &[&str])] = &[
    ("cgroup::core", &["model", "podspec", "cgroup::Limits", "cgroup::Reserved"]),
    ("cgroup::names", &["model"]),
    ("cgroup::slice", &["podspec", "cgroup::CgroupVersion", "cgroup::Limits"]),
    ("event::core", &["model"]),
    ("hostfiles::core", &["model"]),
    ("image::core", &["podspec", "image::ImageFailure"]),
    ("image::gc::core", &["model", "podspec"]),
    ("image::provider::core", &["model", "document", "image::keyring"]),
    (
        "image::records::core",
        &["document", "podspec", "image::records::policy::VerificationPolicy"],
    ),
    (
        "image::records::memory",
        &[
            "model",
            "image::gc::Present",
            "image::records::core",
            "image::records::policy::VerificationPolicy",
        ],
    ),
    ("image::records::policy", &["podspec"]),
    ("logs::query", &["logs::Stream", "logs::Wanted"]),
    ("pleg::core", &["model"]),
    ("signals::core", &["model"]),
    ("source::core", &["model", "desired", "manifest"]),
    (
        "volume::core",
        &[
            "model",
            "podspec",
            "volume::Propagation",
            "volume::RecursiveReadOnly",
            "volume::VolumeError",
        ],
    ),
];

/// A path that a module names against the rules: the module, the path, the reason. An exception
/// that nothing needs any more fails the test.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("pleg", "cri", "lists and inspects through the client of the runtime"),
    ("measure", "cri", "asks the runtime where containers write"),
    ("measure", "signals", "measures there"),
    ("pleg", "logs", "reads the end of logs for termination messages"),
    ("image", "cri", "pulls and removes through the client of the runtime"),
    ("housekeeping", "worker::Leftovers", "removes what pods have left by turns with the workers"),
    ("housekeeping", "worker::Turn", "the same"),
    (
        "node_view",
        "worker::SetView",
        "shows the pods of other agents and manifests with a taken name",
    ),
    ("cli", "serve", "status and logs ask the agent through the client of its socket"),
];

/// Paths that a pure module never names; `tokio` also stands for `tokio_util`.
const IMPURE: &[&str] = &[
    "async",
    "tokio",
    "tonic",
    "prost",
    "kube",
    "tracing",
    "std::fs",
    "std::env",
    "SystemTime",
    "Instant",
];

/// A path in the source, without generic arguments; `crate`, `self` and `super` are resolved so
/// that a path inside the crate begins with `crate`.
#[derive(Clone, Debug, PartialEq)]
struct Named {
    path: Vec<String>,
    line: usize,
}

/// What one file says, apart from its tests.
#[derive(Default)]
struct Parsed {
    named: Vec<Named>,
    /// Modules that are declared without a body, as paths from the crate root.
    declared: Vec<Vec<String>>,
}

/// Reads the tokens of one module.
struct Reader {
    /// The path of the module that is being read, from the crate root.
    module: Vec<String>,
    parsed: Parsed,
}

impl Reader {
    fn parse(module: &[&str], text: &str) -> Parsed {
        let stream: TokenStream = text.parse().unwrap();
        let module = module.iter().map(|&m| m.to_owned()).collect();
        let mut reader = Self { module, parsed: Parsed::default() };
        reader.read(stream);
        reader.parsed
    }

    fn read(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if let Some(attribute) = attribute(&tokens[at..]) {
                at += 2;
                if is_cfg_test(&attribute) {
                    at += item_length(&tokens[at..]);
                } else {
                    self.read(attribute);
                }
                continue;
            }
            if let [TokenTree::Ident(keyword), TokenTree::Ident(name), body, ..] = &tokens[at..]
                && keyword == "mod"
            {
                self.module.push(name.to_string());
                match body {
                    TokenTree::Group(body) => self.read(body.stream()),
                    TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {
                        self.parsed.declared.push(self.module.clone());
                    }
                }
                self.module.pop();
                at += 3;
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(word) if word == "pub" => at += visibility_length(&tokens[at..]),
                TokenTree::Ident(_) => at += self.tree(&tokens[at..], &[]),
                TokenTree::Group(group) => {
                    self.read(group.stream());
                    at += 1;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
            }
        }
    }

    /// Reads a path or `use` tree at the start of `tokens` and returns how many tokens it has.
    fn tree(&mut self, tokens: &[TokenTree], prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        let mut at = 0;
        let line = tokens[0].span().start().line;
        loop {
            match tokens.get(at) {
                Some(TokenTree::Ident(segment)) => {
                    if path.is_empty() || segment != "self" {
                        path.push(segment.to_string());
                    }
                    at += 1;
                }
                // `a::{b, c::d as e}`, and no block: `::` came before it.
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    self.group(group.stream(), &path);
                    return at + 1;
                }
                // `a::*`, `a::<T>`
                _ => break,
            }
            if !is_path_separator(&tokens[at..]) {
                break;
            }
            at += 2;
        }
        let path = self.resolved(path);
        self.parsed.named.push(Named { path, line });
        at
    }

    /// Reads the trees between the braces of a `use` tree.
    fn group(&mut self, stream: TokenStream, prefix: &[String]) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        for tree in tokens.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','))
        {
            if !tree.is_empty() {
                self.tree(tree, prefix);
            }
        }
    }

    fn resolved(&self, path: Vec<String>) -> Vec<String> {
        let ups = path.iter().take_while(|segment| *segment == "super").count();
        let rest = match path[0].as_str() {
            "self" => &path[1..],
            "super" => &path[ups..],
            _ => return path,
        };
        let kept = self.module.len().saturating_sub(ups);
        [&["crate".to_owned()], &self.module[..kept], rest].concat()
    }
}

/// The content of the attribute that `tokens` begins with.
fn attribute(tokens: &[TokenTree]) -> Option<TokenStream> {
    match tokens {
        [TokenTree::Punct(hash), TokenTree::Group(group), ..]
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group.stream())
        }
        _ => None,
    }
}

fn is_cfg_test(attribute: &TokenStream) -> bool {
    attribute.to_string().replace(' ', "") == "cfg(test)"
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(a), TokenTree::Punct(b), ..]
        if a.as_char() == ':' && b.as_char() == ':')
}

/// How many tokens `pub`, `pub(crate)` or `pub(in super::super)` at the start of `tokens` has.
fn visibility_length(tokens: &[TokenTree]) -> usize {
    match tokens.get(1) {
        Some(TokenTree::Group(scope)) if scope.delimiter() == Delimiter::Parenthesis => {
            let first = scope.stream().into_iter().next().map(|token| token.to_string());
            let is_scope = ["crate", "in", "self", "super"].contains(&&*first.unwrap_or_default());
            if is_scope { 2 } else { 1 }
        }
        _ => 1,
    }
}

/// How many tokens the item, field or statement at the start of `tokens` has, attributes included.
fn item_length(tokens: &[TokenTree]) -> usize {
    let mut start = 0;
    while attribute(&tokens[start..]).is_some() {
        start += 2;
    }
    let mut words = tokens[start..].iter().filter_map(|token| match token {
        TokenTree::Ident(word) => Some(word.to_string()),
        TokenTree::Group(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => None,
    });
    let keyword = words.find(|word| word != "pub").unwrap_or_default();
    // A comma ends a field or an argument; in an item it belongs to generic parameters.
    let is_item =
        ["async", "const", "enum", "fn", "impl", "mod", "static", "struct", "trait", "use"]
            .contains(&keyword.as_str());
    let end = tokens[start..].iter().position(|token| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(p) => p.as_char() == ';' || (p.as_char() == ',' && !is_item),
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    });
    end.map_or(tokens.len(), |end| start + end + 1)
}

fn kind_of(top: &str) -> Option<Kind> {
    MODULES.iter().find(|(name, _)| *name == top).map(|(_, kind)| *kind)
}

fn is_below(path: &[String], ancestor: &str) -> bool {
    let ancestor: Vec<&str> = ancestor.split("::").collect();
    path.len() >= ancestor.len() && path.iter().zip(ancestor).all(|(a, b)| a == b)
}

/// The entry of [`IMPURE`] that `path` names.
fn impurity(path: &[String]) -> Option<&'static str> {
    IMPURE.iter().copied().find(|banned| match *banned {
        "async" | "SystemTime" | "Instant" => path.iter().any(|segment| segment == banned),
        banned if banned.contains("::") => is_below(path, banned),
        banned => path[0].strip_prefix(banned).is_some_and(|r| r.is_empty() || r.starts_with('_')),
    })
}

/// Whether code of `module` may name `path`, a path inside the crate.
fn may_name(module: &[String], path: &[String]) -> bool {
    let (top, target) = (module[0].as_str(), path[0].as_str());
    if let Some((part, allowed)) = CORE_PARTS.iter().find(|(part, _)| is_below(module, part)) {
        return is_below(path, part) || allowed.iter().any(|other| is_below(path, other));
    }
    let Some(target_kind) = kind_of(target) else { return false };
    if top == target {
        return true;
    }
    match kind_of(top) {
        Some(Core(allowed)) => allowed.contains(&target),
        Some(Leaf | Shared) => matches!(target_kind, Core(_) | Shared),
        Some(Capability) => matches!(target_kind, Core(_) | Leaf | Shared),
        Some(Edge) => matches!(target_kind, Core(_) | Leaf | Shared | Edge),
        Some(Agent) => true,
        None => false,
    }
}

fn is_pure(module: &[String]) -> bool {
    matches!(kind_of(&module[0]), Some(Core(_)))
        || CORE_PARTS.iter().any(|(part, _)| is_below(module, part))
}

/// What is wrong with each path that code of `module` names.
fn violations<'a>(
    module: &'a [String],
    named: &'a [Named],
) -> impl Iterator<Item = (&'a Named, String)> {
    named.iter().filter_map(|named| {
        let path = &named.path;
        let wrong = match path.split_first() {
            Some((root, inside)) if root == "crate" => {
                !inside.is_empty() && !may_name(module, inside)
            }
            _ => is_pure(module) && impurity(path).is_some(),
        };
        wrong.then(|| (named, format!("`{}` names `{}`", module.join("::"), path.join("::"))))
    })
}

fn source_of(module: &[String]) -> PathBuf {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let base = module.iter().fold(src, |path, segment| path.join(segment));
    if module.is_empty() {
        base.join("lib.rs")
    } else if base.join("mod.rs").is_file() {
        base.join("mod.rs")
    } else {
        base.with_extension("rs")
    }
}

/// Every module of the crate that has a file and is no test.
fn crate_modules() -> BTreeMap<Vec<String>, Parsed> {
    let mut modules = BTreeMap::new();
    let mut waiting = vec![Vec::new()];
    while let Some(module) = waiting.pop() {
        let text = std::fs::read_to_string(source_of(&module)).unwrap();
        let segments: Vec<&str> = module.iter().map(String::as_str).collect();
        let parsed = Reader::parse(&segments, &text);
        waiting.extend(parsed.declared.iter().cloned());
        modules.insert(module, parsed);
    }
    modules
}

#[test]
fn each_top_level_module_has_a_kind() {
    let modules = crate_modules();
    let found: Vec<&str> = modules[&Vec::new()].declared.iter().map(|m| m[0].as_str()).collect();
    let unlisted: Vec<_> = found.iter().filter(|name| kind_of(name).is_none()).collect();
    assert!(unlisted.is_empty(), "in no list: {unlisted:?}");
    let listed = MODULES.iter().map(|(name, _)| name);
    let gone: Vec<_> = listed.filter(|name| !found.contains(name)).collect();
    assert!(gone.is_empty(), "listed, and no module: {gone:?}");
    for (part, _) in CORE_PARTS {
        assert!(modules.keys().any(|m| is_below(m, part)), "listed, and no module: {part}");
    }
}

#[test]
fn modules_name_only_what_their_kind_allows() {
    let mut wrong = Vec::new();
    let mut used = vec![false; EXCEPTIONS.len()];
    for (module, parsed) in crate_modules().iter().filter(|(module, _)| !module.is_empty()) {
        for (named, violation) in violations(module, &parsed.named) {
            let exception = EXCEPTIONS
                .iter()
                .position(|(of, to, _)| is_below(module, of) && is_below(&named.path[1..], to));
            match exception {
                Some(exception) => used[exception] = true,
                None => wrong.push(format!(
                    "{}:{}: {violation}",
                    source_of(module).display(),
                    named.line
                )),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unused: Vec<_> = EXCEPTIONS.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(unused.is_empty(), "exceptions that nothing needs: {unused:?}");
}

#[test]
fn core_modules_need_what_their_lists_allow() {
    let modules = crate_modules();
    let cores = MODULES.iter().filter_map(|(name, kind)| match kind {
        Core(allowed) => Some((*name, *allowed)),
        Leaf | Shared | Capability | Agent | Edge => None,
    });
    for (name, allowed) in cores.chain(CORE_PARTS.iter().copied()) {
        for entry in allowed {
            let mut named = modules
                .iter()
                .filter(|(module, _)| is_below(module, name))
                .flat_map(|(_, parsed)| &parsed.named);
            let needed = named.any(|n| n.path[0] == "crate" && is_below(&n.path[1..], entry));
            assert!(needed, "`{name}` no longer names `{entry}`");
        }
    }
}

/// The paths that `text` names as the module `plan::pod`, joined.
fn paths(text: &str) -> Vec<String> {
    let named = Reader::parse(&["plan", "pod"], text).named;
    named.into_iter().map(|named| named.path.join("::")).filter(|p| p.contains("::")).collect()
}

#[test]
fn use_trees_of_any_shape_are_read() {
    let text = "use crate::{
            model::{ids::{self, PodUid as Uid}, *},
            cri as runtime,
        };
        pub(in super::super) use super::{action::Action, super::status};
        use {self::inner::A, std::{fs as files, io}};";
    let expected = [
        "crate::model::ids",
        "crate::model::ids::PodUid",
        "crate::model",
        "crate::cri",
        "crate::plan::action::Action",
        "crate::status",
        "crate::plan::pod::inner::A",
        "std::fs",
        "std::io",
    ];
    assert_eq!(paths(text), expected);
}

#[test]
fn paths_in_code_and_in_macro_arguments_are_read() {
    let text = "fn f(a: crate::model::A<crate::worker::B>) -> impl Fn() {
            mod nested { use super::super::kill; }
            select! { x = super::wait() => crate::store::save::<u8>(x).run() }
        }";
    let expected = [
        "crate::model::A",
        "crate::worker::B",
        "crate::plan::kill",
        "crate::plan::wait",
        "crate::store::save",
    ];
    assert_eq!(paths(text), expected);
}

#[test]
fn what_cfg_test_marks_is_not_read() {
    let text = "
        #[cfg(test)] mod tests;
        #[cfg(test)] #[allow(x)] mod more { use crate::a::A; }
        #[cfg(test)] use crate::{b::B, c::C};
        #[cfg(test)] fn d<T: crate::d::D, U>() { crate::e::E }
        struct S { #[cfg(test)] pub f: crate::f::F, g: crate::g::G }
        #[cfg(not(test))] mod product;";
    assert_eq!(paths(text), ["crate::g::G"]);
    let declared = Reader::parse(&["plan"], text).declared;
    assert_eq!(declared, [["plan".to_owned(), "product".to_owned()]]);
}

#[test]
fn violations_are_found_with_their_lines() {
    let cases: [(&[&str], &str, &[&str]); 7] = [
        (&["plan"], "use crate::{\nmodel::A,\nstatus::B};", &["3 crate::status::B"]),
        (&["plan"], "use std::{\nfs, io};\nuse tokio_util::C;", &["2 std::fs", "3 tokio_util::C"]),
        (&["plan"], "async fn now() { Instant::now() }", &["1 async", "1 Instant::now"]),
        (&["pleg", "core"], "use super::run::A;", &["1 crate::pleg::run::A"]),
        (&["store"], "use crate::{files, volume::V};", &["1 crate::volume::V"]),
        (&["serve"], "use crate::{cri, worker::W};", &["1 crate::worker::W"]),
        (
            &["config"],
            "use crate::{model, serve::S, unlisted};",
            &["1 crate::serve::S", "1 crate::unlisted"],
        ),
    ];
    for (module, text, expected) in cases {
        let named = Reader::parse(module, text).named;
        let module: Vec<String> = module.iter().map(|&m| m.to_owned()).collect();
        let found: Vec<String> = violations(&module, &named)
            .map(|(named, _)| format!("{} {}", named.line, named.path.join("::")))
            .collect();
        assert_eq!(found, expected, "{text}");
    }
}
