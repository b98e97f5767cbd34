//! `kind: CredentialProviderConfig`: which plugins have the credentials of which registries. The
//! file is strict, and no value of an argument or a variable is repeated in a message.

use super::tree::{Layer, Mistake, Place};
use crate::{
    document::{Document, Field, Node, Type, Value, nearest, parse, walk},
    files::is_executable,
    image::CredentialProvider,
    model::{Order as _, Position, parse_duration},
    program::Program,
};
use std::{fmt, io, path::Path, sync::Arc};

/// What the kind is called.
pub const PROVIDER_KIND: &str = "CredentialProviderConfig";

const VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
const PLUGIN_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

const ROOT: &[Field] = &[
    Field::yes("apiVersion", Type::String),
    Field::yes("kind", Type::String),
    Field::yes("providers", Type::List(&Type::Object(PROVIDER))),
];
const PROVIDER: &[Field] = &[
    Field::yes("name", Type::String),
    Field::yes("matchImages", Type::List(&Type::String)),
    Field::yes("defaultCacheDuration", Type::Duration),
    Field::yes("apiVersion", Type::String),
    // Text, which is checked below: the values may be secrets.
    Field::yes("args", Type::List(&Type::Any)),
    Field::yes("env", Type::List(&Type::Object(VARIABLE))),
    Field::no(
        "tokenAttributes",
        Type::Any,
        "a static pod has no service account whose token a plugin could get",
    ),
];
const VARIABLE: &[Field] = &[Field::yes("name", Type::String), Field::yes("value", Type::Any)];

/// Plugins with the places of their names.
#[derive(Default)]
pub(super) struct ProviderFiles {
    pub(super) mistakes: Vec<Mistake>,
    found: Vec<(Place, String, CredentialProvider)>,
}

impl ProviderFiles {
    /// Reads the text of one file. Programs are in `bin_dir`.
    pub(super) fn file(&mut self, location: &Arc<str>, text: &[u8], bin_dir: &Path) {
        let start = Place {
            location: Arc::clone(location),
            position: Position::default(),
            layer: Layer::Main,
        };
        let documents = match parse(text) {
            Ok(documents) => documents,
            Err(problem) => {
                self.mistakes.push(Mistake { location: Arc::clone(location), problem });
                return;
            }
        };
        let root = match documents.as_slice() {
            [Document { root, .. }] => root,
            [] => return self.mistakes.push(start.mistake("", "the file is empty")),
            [_, second, ..] => {
                let place = Place { position: second.root.position, ..start };
                let message = "a second document: put each into a file of its own";
                return self.mistakes.push(place.mistake("", message));
            }
        };
        let mut file = File { start, bin_dir, mistakes: Vec::new() };
        file.identify(root);
        for finding in walk(root, ROOT, "") {
            let location = Arc::clone(location);
            file.mistakes.push(Mistake { location, problem: finding.problem });
        }
        let providers = root.get("providers").map_or(&[][..], Node::items);
        if providers.is_empty() {
            file.wrong(root, "providers", "Required value: at least one plugin");
        }
        for (index, node) in providers.iter().enumerate() {
            let path = format!("providers[{index}]");
            let provider = file.provider(node, &path);
            let name = node.get("name").unwrap_or(node);
            let place = Place { position: name.position, ..file.start.clone() };
            let twice = |(_, _, other): &&(Place, String, CredentialProvider)| {
                other.name == provider.name && !provider.name.is_empty()
            };
            if let Some((first, _, _)) = self.found.iter().find(twice) {
                let message = format!(
                    "Duplicate value: {:?}: also written in {}, line {}",
                    provider.name, first.location, first.position.line
                );
                self.mistakes.push(place.mistake(&format!("{path}.name"), message));
            }
            self.found.push((place, format!("{path}.name"), provider));
        }
        self.mistakes.append(&mut file.mistakes);
        self.mistakes.order_by_key(|m| (m.location != *location, m.problem.position));
        self.mistakes.dedup();
    }

    /// Checks that each plugin can be run.
    pub(super) fn check_programs(&mut self) {
        for (place, path, provider) in &self.found {
            let program = &provider.command.program;
            // A name that is wrong was reported.
            if program.file_name().is_none_or(|name| name != provider.name.as_str()) {
                continue;
            }
            let wrong = match is_executable(program) {
                Ok(true) => continue,
                Ok(false) => "it is no executable file".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    "there is no such file".to_owned()
                }
                Err(error) => format!("it can't be read: {error}"),
            };
            let message =
                format!("Invalid value: {:?}: {}: {wrong}", provider.name, program.display());
            self.mistakes.push(place.mistake(path, message));
        }
    }

    /// The plugins, in the order of files and lines.
    pub(super) fn providers(self) -> Vec<CredentialProvider> {
        self.found.into_iter().map(|(_, _, provider)| provider).collect()
    }
}

struct File<'a> {
    start: Place,
    bin_dir: &'a Path,
    mistakes: Vec<Mistake>,
}

impl File<'_> {
    fn wrong(&mut self, node: &Node, path: &str, message: impl Into<String>) {
        let place = Place { position: node.position, ..self.start.clone() };
        self.mistakes.push(place.mistake(path, message));
    }

    fn invalid(&mut self, node: &Node, path: &str, value: impl fmt::Debug, must: &str) {
        self.wrong(node, path, format!("Invalid value: {value:?}: {must}"));
    }

    /// The text of a field that must be set.
    fn required<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        name: &str,
    ) -> Option<(&'n str, &'n Node)> {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match node.get(name).filter(|field| !field.is_null()) {
            None => {
                self.wrong(node, &path, "Required value");
                None
            }
            Some(field) if field.as_str() == Some("") => {
                self.wrong(field, &path, "Required value");
                None
            }
            // Another type was found by the walk.
            Some(field) => field.as_str().map(|text| (text, field)),
        }
    }

    /// The text of a field that must be one of `known`.
    fn one_of(&mut self, node: &Node, path: &str, name: &str, known: &[&str]) -> String {
        let Some((text, field)) = self.required(node, path, name) else { return String::new() };
        if !known.contains(&text) {
            let hint = nearest(text, known.iter().copied())
                .map_or(String::new(), |name| format!("; did you mean {name:?}?"));
            let known: Vec<String> = known.iter().map(|one| format!("{one:?}")).collect();
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let known = known.join(", ");
            let message = format!("Unsupported value: {text:?}: supported values: {known}{hint}");
            self.wrong(field, &path, message);
        }
        text.to_owned()
    }

    fn identify(&mut self, root: &Node) {
        self.one_of(root, "", "kind", &[PROVIDER_KIND]);
        self.one_of(root, "", "apiVersion", &VERSIONS);
    }

    fn provider(&mut self, node: &Node, path: &str) -> CredentialProvider {
        let name = self.required(node, path, "name").map_or("", |(name, field)| {
            if matches!(name, "." | "..") || name.contains(['/', ' ', '\0']) {
                let must = "must be the name of a program in the directory of the plugins";
                self.invalid(field, &format!("{path}.name"), name, must);
            }
            name
        });
        let default_cache = self.required(node, path, "defaultCacheDuration");
        CredentialProvider {
            name: name.to_owned(),
            command: Program {
                program: self.bin_dir.join(name),
                args: self.args(node, path),
                env: self.env(node, path),
            },
            match_images: self.match_images(node, path),
            default_cache: default_cache
                .and_then(|(text, _)| parse_duration(text))
                .unwrap_or_default(),
            api_version: self.one_of(node, path, "apiVersion", &PLUGIN_VERSIONS),
        }
    }

    fn match_images(&mut self, node: &Node, path: &str) -> Vec<String> {
        let path = format!("{path}.matchImages");
        let items = node.get("matchImages").map_or(&[][..], Node::items);
        if items.is_empty() {
            let at = node.get("matchImages").unwrap_or(node);
            self.wrong(at, &path, "Required value: at least one pattern");
        }
        let mut patterns = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let Some(text) = item.as_str() else { continue };
            let host = text.split('/').next().unwrap_or_default();
            let (name, port) = host.split_once(':').unwrap_or((host, "0"));
            let good = !name.is_empty()
                && !port.is_empty()
                && port.bytes().all(|byte| byte.is_ascii_digit())
                && !text.contains("://")
                && !text.contains(|c: char| c.is_whitespace() || c.is_control());
            if !good {
                let must = "must be a registry and the beginning of a path, without a scheme, \
                            like *.example.com or registry.example.com:5000/team";
                self.invalid(item, &format!("{path}[{index}]"), text, must);
            }
            patterns.push(text.to_owned());
        }
        patterns
    }

    fn args(&mut self, node: &Node, path: &str) -> Vec<String> {
        let items = node.get("args").map_or(&[][..], Node::items).iter().enumerate();
        items.map(|(index, item)| self.secret(item, &format!("{path}.args[{index}]"))).collect()
    }

    fn env(&mut self, node: &Node, path: &str) -> Vec<(String, String)> {
        let mut env = Vec::new();
        let items = node.get("env").map_or(&[][..], Node::items).iter().enumerate();
        for (index, item) in items {
            let path = format!("{path}.env[{index}]");
            let name = self.required(item, &path, "name").map_or("", |(name, field)| {
                if name.contains(['=', '\0']) {
                    let must = "must be the name of a variable";
                    self.invalid(field, &format!("{path}.name"), name, must);
                }
                name
            });
            let value = item.get("value").filter(|value| !value.is_null());
            let value =
                value.map_or(String::new(), |value| self.secret(value, &format!("{path}.value")));
            env.push((name.to_owned(), value));
        }
        env
    }

    /// A text that messages do not repeat.
    fn secret(&mut self, node: &Node, path: &str) -> String {
        let hint = match &node.value {
            Value::String(text) if !text.contains('\0') => return text.clone(),
            Value::Number(_) | Value::Bool(_) => ": put it in quotes",
            Value::Null | Value::String(_) | Value::List(_) | Value::Map(_) => "",
        };
        self.wrong(node, path, format!("Invalid value: must be text{hint}"));
        String::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::path::PathBuf;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
    const GOOD: &str = "providers:
- name: ecr
  matchImages: ['*.dkr.ecr.*.amazonaws.com', 'registry.example.com:5000/team']
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get-credentials]
  env: [{name: AWS_PROFILE, value: node}, {name: EMPTY}]
";

    fn read(texts: &[&str]) -> ProviderFiles {
        let mut files = ProviderFiles::default();
        for (index, text) in texts.iter().enumerate() {
            files.file(&format!("{index}.yaml").into(), text.as_bytes(), Path::new("/opt/bin"));
        }
        files
    }

    fn mistakes(texts: &[&str]) -> Vec<String> {
        read(texts).mistakes.iter().map(Mistake::to_string).collect()
    }

    #[test]
    fn a_good_file_has_all_of_a_plugin() {
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let head = HEAD.replace("/v1", &format!("/{version}"));
            let good = format!("{head}{GOOD}");
            assert_eq!(mistakes(&[&good]), Vec::<String>::new());
            let providers = read(&[&good, &good.replace("ecr", "gcr")]).providers();
            assert_eq!(
                providers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
                ["ecr", "gcr"]
            );
            let first = &providers[0];
            assert_eq!(first.command.program, PathBuf::from("/opt/bin/ecr"));
            assert_eq!(first.command.args, ["get-credentials"]);
            let variables = [("AWS_PROFILE", "node"), ("EMPTY", "")];
            assert_eq!(
                first.command.env,
                variables.map(|(name, value)| (name.to_owned(), value.to_owned()))
            );
            assert_eq!(first.match_images.len(), 2);
            assert_eq!(first.default_cache.as_secs(), 12 * 3600);
            assert_eq!(first.api_version, "credentialprovider.kubelet.k8s.io/v1");
        }
    }

    #[test]
    fn each_mistake_has_its_place() {
        let of = |rest: &str| mistakes(&[&format!("{HEAD}{rest}")]);
        let edited = |from: &str, to: &str| of(&GOOD.replace(from, to));
        for (found, wanted) in [
            (of(""), "0.yaml: line 1, column 1: providers: Required value: at least one plugin"),
            (mistakes(&[""]), "0.yaml: the file is empty"),
            (
                mistakes(&[&format!("{HEAD}{GOOD}---\n{HEAD}{GOOD}")]),
                "0.yaml: line 11, column 1: a second document: put each into a file of its own",
            ),
            (
                mistakes(&[&format!("{HEAD}{GOOD}").replace("Config\n", "Configs\n")]),
                "0.yaml: line 2, column 7: kind: Unsupported value: \"CredentialProviderConfigs\": supported values: \"CredentialProviderConfig\"; did you mean \"CredentialProviderConfig\"?",
            ),
            (
                edited("- name: ecr", "- name: a/b"),
                "0.yaml: line 4, column 9: providers[0].name: Invalid value: \"a/b\": must be the name of a program in the directory of the plugins",
            ),
            (
                edited("name: ecr", "nam: ecr"),
                "0.yaml: line 4, column 3: providers[0].nam: unknown field, did you mean \"name\"?",
            ),
            (
                edited("'*.dkr", "'https://*.dkr"),
                "0.yaml: line 5, column 17: providers[0].matchImages[0]: Invalid value: \"https://*.dkr.ecr.*.amazonaws.com\": must be a registry and the beginning of a path, without a scheme, like *.example.com or registry.example.com:5000/team",
            ),
            (
                edited("12h", "soon"),
                "0.yaml: line 6, column 25: providers[0].defaultCacheDuration: Invalid value: \"soon\": must be a duration with units, like 90s, 1m30s or 100ms",
            ),
            (
                edited("  defaultCacheDuration: 12h\n", ""),
                "0.yaml: line 4, column 3: providers[0].defaultCacheDuration: Required value",
            ),
            (
                edited("credentialprovider.kubelet.k8s.io/v1", "v1"),
                "0.yaml: line 7, column 15: providers[0].apiVersion: Unsupported value: \"v1\": supported values: \"credentialprovider.kubelet.k8s.io/v1\", \"credentialprovider.kubelet.k8s.io/v1beta1\", \"credentialprovider.kubelet.k8s.io/v1alpha1\"",
            ),
            (
                edited("[get-credentials]", "[7777]"),
                "0.yaml: line 8, column 10: providers[0].args[0]: Invalid value: must be text: put it in quotes",
            ),
            (
                edited("value: node", "value: 7777"),
                "0.yaml: line 9, column 36: providers[0].env[0].value: Invalid value: must be text: put it in quotes",
            ),
            (
                edited("  args", "  tokenAttributes: {requireServiceAccount: true}\n  args"),
                "0.yaml: line 8, column 3: providers[0].tokenAttributes: Unsupported: a static pod has no service account whose token a plugin could get",
            ),
        ] {
            assert!(found.iter().any(|mistake| mistake == wanted), "{wanted}\n{found:#?}");
        }
        let good = format!("{HEAD}{GOOD}");
        assert_eq!(
            mistakes(&[&good, &good]),
            [
                "1.yaml: line 4, column 9: providers[0].name: Duplicate value: \"ecr\": also written in 0.yaml, line 4"
            ]
        );
    }

    #[test]
    fn a_program_must_be_there_and_executable() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str| {
            let mut files = ProviderFiles::default();
            let text = format!("{HEAD}{GOOD}").replace("ecr\n", &format!("{name}\n"));
            files.file(&"f".into(), text.as_bytes(), dir.path());
            files.check_programs();
            files.mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n")
        };
        let path = |name: &str| dir.path().join(name).display().to_string();
        assert_eq!(
            check("none"),
            format!(
                "f: line 4, column 9: providers[0].name: Invalid value: \"none\": {}: there is no such file",
                path("none")
            )
        );
        std::fs::write(path("text"), "").unwrap();
        std::fs::create_dir(path("directory")).unwrap();
        for name in ["text", "directory"] {
            assert!(check(name).ends_with(": it is no executable file"), "{}", check(name));
        }
        std::os::unix::fs::symlink("/bin/sh", path("sh")).unwrap();
        assert_eq!(check("sh"), "");
    }
}
