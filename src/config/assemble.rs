//! From the texts of files and the values of flags to a [`Config`]: pure, everything wrong at once.

use super::{
    build, cluster,
    effective::effective,
    eviction,
    fields::{KUBELET, NODELET, field_at},
    flags::{BOOTSTRAP_FLAG, Effect, Flag, Target},
    guards,
    host::HostFacts,
    names,
    read::{Bases, Reader},
    server,
    settings::{Config, NodeConfig},
    tree::{Layer, Mistake, Place, Tree},
    unset::is_unset,
};
use crate::{
    document::{Document, Field, FindingKind, Node, Support, Type, nearest, parse, walk},
    model::{CloudProvider, Order as _, Position, Problem, Quantity, parse_duration},
};
use serde_json::{Value as Json, json};
use std::{path::PathBuf, sync::Arc};
use thiserror::Error;

pub(super) const KUBELET_KIND: (&str, &str) =
    ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
const NODELET_KIND: (&str, &str) = ("nodelet.dev/v1alpha1", "NodeletConfiguration");

/// A file that was read.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    /// Its path, as messages name it.
    pub(super) name: Arc<str>,
    pub(super) text: Vec<u8>,
    /// Main or drop-in.
    pub(super) layer: Layer,
}

/// A flag as it was given.
#[derive(Clone, Debug)]
pub struct GivenFlag {
    /// Which.
    pub flag: &'static Flag,
    /// Each of its values, in order; at least one.
    pub values: Vec<String>,
}

impl GivenFlag {
    fn place(&self) -> Place {
        Place {
            location: format!("--{}", self.flag.name).into(),
            position: Position::default(),
            layer: Layer::Flag,
        }
    }

    /// The value that counts where only one does.
    #[must_use]
    pub fn last(&self) -> &str {
        self.values.last().map_or("", String::as_str)
    }

    /// The values that count where more than one does.
    fn counting(&self) -> &[String] {
        let all = self.values.as_slice();
        if self.flag.replaces_its_list() { &all[all.len().saturating_sub(1)..] } else { all }
    }
}

/// A configuration that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What to do. Its notices contain what is unknown as well.
    pub config: Config,
    /// Unknown fields of KubeletConfiguration: `check` fails because of them, but the agent starts.
    pub unknown: Vec<Mistake>,
    /// What is known and not acted on.
    pub notices: Vec<Mistake>,
    /// The KubeletConfiguration that is in effect.
    pub effective: Json,
}

/// Everything that is wrong with a configuration, in the order of files and lines.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", lines(&self.mistakes))]
pub struct ConfigError {
    /// At least one.
    pub mistakes: Vec<Mistake>,
    /// Unknown fields of KubeletConfiguration, which alone would not stop the agent from starting.
    pub unknown: Vec<Mistake>,
}

fn lines(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n")
}

/// What was gathered so far.
struct Gathering {
    kubelet: Tree,
    nodelet: Tree,
    mistakes: Vec<Mistake>,
    unknown: Vec<Mistake>,
    notices: Vec<Mistake>,
}

/// Merges and validates.
pub(super) fn assemble(
    files: &[SourceFile],
    flags: &[GivenFlag],
    bases: &Bases,
    host: &HostFacts,
) -> Result<Loaded, ConfigError> {
    let nowhere = Place { location: "".into(), position: Position::default(), layer: Layer::Main };
    let mut gathering = Gathering {
        kubelet: Tree::empty(nowhere.clone()),
        nodelet: Tree::empty(nowhere.clone()),
        mistakes: Vec::new(),
        unknown: Vec::new(),
        notices: Vec::new(),
    };
    let (main, drop_ins): (Vec<_>, Vec<_>) = files.iter().partition(|f| f.layer == Layer::Main);
    main.into_iter().for_each(|file| gathering.file(file));
    eviction::set_default(&mut gathering.kubelet, &nowhere);
    cluster::set_defaults(&mut gathering.kubelet, &nowhere);
    drop_ins.into_iter().for_each(|file| gathering.file(file));
    cluster::set_defaults(&mut gathering.kubelet, &nowhere);
    let mut own = Own::default();
    for given in flags {
        gathering.flag(given, &mut own);
    }
    let Gathering { kubelet, nodelet, mut mistakes, unknown, mut notices } = gathering;
    let effective = effective(&kubelet);

    let mut kubelet = Reader::new(&kubelet, bases);
    let mut nodelet = Reader::new(&nodelet, bases);
    let mut config = build::build(&mut kubelet, &mut nodelet, &mut notices);
    guards::guards(&mut kubelet, host);
    config.node = NodeConfig { labels: config.node.labels, ..own.node };
    if let Some((text, place)) = own.root_dir {
        config.paths.root_dir =
            kubelet.absolute(&text, &place, "").unwrap_or(config.paths.root_dir);
    }
    if let Some((text, place)) = own.kubeconfig {
        config.cluster.kubeconfig = kubelet.absolute(&text, &place, "");
    }
    if let Some((text, place)) = own.bootstrap {
        config.cluster.identity.bootstrap = kubelet.absolute(&text, &place, "");
    }
    if let Some(place) = own.external_cloud_provider {
        config.cluster.cloud_provider = CloudProvider::External;
        if config.cluster.kubeconfig.is_none() {
            notices.push(place.mistake("", "not acted on: there is no Node without --kubeconfig"));
        }
    }
    let in_cluster = config.cluster.kubeconfig.is_some();
    server::settle_bootstrap(&kubelet, &mut config.server, in_cluster, &mut notices);
    server::guard(&kubelet, &config.server, in_cluster, &mut notices);
    if let Some((text, place)) = own.cert_dir {
        config.server.certificate_dir = kubelet.absolute(&text, &place, "");
    }
    mistakes.extend(kubelet.mistakes);
    mistakes.extend(nodelet.mistakes);
    in_order(&mut mistakes, files);
    in_order(&mut notices, files);
    if !mistakes.is_empty() {
        return Err(ConfigError { mistakes, unknown });
    }
    config.notices = unknown.iter().chain(&notices).map(Mistake::to_string).collect();
    Ok(Loaded { config, unknown, notices, effective })
}

/// Sorts by file as they were read, then by place; flags last.
fn in_order(mistakes: &mut Vec<Mistake>, files: &[SourceFile]) {
    let rank = |m: &Mistake| files.iter().position(|f| f.name == m.location).unwrap_or(files.len());
    mistakes.order_by_key(|m| (rank(m), m.problem.position));
    mistakes.dedup();
}

/// Says of an unknown field that it is known in the other kind of document.
fn misplaced(in_nodelets: bool, path: &str) -> &'static str {
    let (other, hint) = match in_nodelets {
        true => (KUBELET, "; it belongs in a document of kind KubeletConfiguration"),
        false => (NODELET, "; it belongs in a document of kind NodeletConfiguration"),
    };
    if other.iter().any(|field| field.name == path) { hint } else { "" }
}

/// What flags alone can say.
#[derive(Default)]
struct Own {
    node: NodeConfig,
    root_dir: Option<(String, Place)>,
    kubeconfig: Option<(String, Place)>,
    bootstrap: Option<(String, Place)>,
    cert_dir: Option<(String, Place)>,
    /// Where `--cloud-provider=external` was given.
    external_cloud_provider: Option<Place>,
}

impl Gathering {
    fn file(&mut self, file: &SourceFile) {
        let start = Place {
            location: Arc::clone(&file.name),
            position: Position::default(),
            layer: file.layer,
        };
        let documents = match parse(&file.text) {
            Ok(documents) => documents,
            Err(problem) => {
                self.mistakes.push(Mistake { location: Arc::clone(&file.name), problem });
                return;
            }
        };
        if documents.is_empty() {
            self.mistakes.push(start.mistake("", "the file is empty"));
        }
        let mut seen: Vec<&str> = Vec::new();
        for document in &documents {
            let kind = match identify(document) {
                Ok(kind) => kind,
                Err(problem) => {
                    self.mistakes.push(Mistake { location: Arc::clone(&file.name), problem });
                    continue;
                }
            };
            let place = Place { position: document.root.position, ..start.clone() };
            if seen.contains(&kind.1) {
                let message = format!("a second document of kind {}: put both into one", kind.1);
                self.mistakes.push(place.mistake("kind", message));
                continue;
            }
            seen.push(kind.1);
            self.document(document, kind, &place);
        }
    }

    fn document(&mut self, document: &Document, kind: (&str, &str), place: &Place) {
        let strict = kind == NODELET_KIND;
        for finding in walk(&document.root, if strict { NODELET } else { KUBELET }, "") {
            let mut mistake =
                Mistake { location: Arc::clone(&place.location), problem: finding.problem };
            if finding.kind == FindingKind::Unknown {
                mistake.problem.message += misplaced(strict, &mistake.problem.path);
            }
            match finding.kind {
                FindingKind::Unknown if !strict => self.unknown.push(mistake),
                FindingKind::Unknown | FindingKind::WrongType | FindingKind::Duplicate => {
                    self.mistakes.push(mistake);
                }
                FindingKind::Unsupported | FindingKind::Ignored
                    if field_at(KUBELET, &mistake.problem.path).is_some_and(|field| {
                        is_unset(field, document.root.nearest_to(&mistake.problem.path))
                    }) => {}
                FindingKind::Unsupported => self.mistakes.push(mistake),
                FindingKind::Ignored => {
                    if let Some(why) = mistake.problem.message.strip_prefix("ignored: ") {
                        mistake.problem.message = format!("not acted on: {why}");
                    }
                    self.notices.push(mistake);
                }
            }
        }
        if strict { &mut self.nodelet } else { &mut self.kubelet }.patch(&document.root, place);
    }

    fn flag(&mut self, given: &GivenFlag, own: &mut Own) {
        let place = given.place();
        match &given.flag.effect {
            Effect::Own(..) => self.own_flag(given, &place, own),
            Effect::Ignored(_, why) => {
                self.notices.push(place.mistake("", format!("not acted on: {why}")));
            }
            Effect::Refused(..) if given.last().is_empty() => {}
            Effect::Refused(_, why) => self.mistakes.push(place.mistake("", *why)),
            Effect::Sets(Target { nodelet, path, field }) => {
                let value = flag_value(field, given, &place);
                if field.support == Support::Ignored {
                    let unset = given.last().is_empty()
                        || value.is_ok_and(|value| is_unset(field, &Node::from_json(&value)));
                    if !unset {
                        let message = format!("not acted on: {}", field.note);
                        self.notices.push(place.mistake("", message));
                    }
                    return;
                }
                match value {
                    Err(mistake) => self.mistakes.push(mistake),
                    Ok(Json::Bool(true)) if field.support == Support::No => {
                        let message = format!("Unsupported: {}", field.note);
                        self.mistakes.push(place.mistake("", message));
                    }
                    Ok(value) => {
                        if *nodelet { &mut self.nodelet } else { &mut self.kubelet }
                            .set(path, &value, &place);
                    }
                }
            }
        }
    }

    fn own_flag(&mut self, given: &GivenFlag, place: &Place, own: &mut Own) {
        let text = given.last().trim();
        match given.flag.name {
            "root-dir" if !text.is_empty() => {
                own.root_dir = Some((text.to_owned(), place.clone()));
            }
            "cert-dir" if !text.is_empty() => {
                own.cert_dir = Some((text.to_owned(), place.clone()));
            }
            "kubeconfig" if !text.is_empty() => {
                own.kubeconfig = Some((text.to_owned(), place.clone()));
            }
            BOOTSTRAP_FLAG if !text.is_empty() => {
                own.bootstrap = Some((text.to_owned(), place.clone()));
            }
            "hostname-override" if !text.is_empty() => {
                let name = text.to_lowercase();
                if let Err(must) = names::subdomain(&name) {
                    let message = format!("Invalid value: {text:?}: {must}");
                    self.mistakes.push(place.mistake("", message));
                }
                own.node.name_override = Some(name);
            }
            "cloud-provider" => match text {
                "" => {}
                "external" => own.external_cloud_provider = Some(place.clone()),
                other => {
                    let message = format!("Invalid value: {other:?}: must be external or empty");
                    self.mistakes.push(place.mistake("", message));
                }
            },
            "node-ip" => own.node.ips = names::node_ips(text, place, &mut self.mistakes),
            // `config` and `config-dir` were followed before.
            _ => {}
        }
    }
}

/// Which of the two kinds a document is.
fn identify(document: &Document) -> Result<(&'static str, &'static str), Problem> {
    let root = &document.root;
    let at = |node: &Node, path: &str, message: String| Problem {
        position: node.position,
        path: path.to_owned(),
        message,
    };
    let Some(kind) = root.get("kind").and_then(Node::as_str) else {
        let message = format!("Required value: {} or {}", KUBELET_KIND.1, NODELET_KIND.1);
        return Err(at(root, "kind", message));
    };
    let Some(known) = [KUBELET_KIND, NODELET_KIND].into_iter().find(|(_, k)| *k == kind) else {
        let hint = nearest(kind, [KUBELET_KIND.1, NODELET_KIND.1].into_iter())
            .map_or(String::new(), |name| format!("; did you mean {name:?}?"));
        let message = format!(
            "Unsupported value: {kind:?}: supported values: {:?}, {:?}{hint}",
            KUBELET_KIND.1, NODELET_KIND.1
        );
        return Err(at(root.nearest_to("kind"), "kind", message));
    };
    match root.get("apiVersion").and_then(Node::as_str) {
        Some(version) if version == known.0 => Ok(known),
        Some(version) => {
            let message =
                format!("Unsupported value: {version:?}: supported values: {:?}", known.0);
            Err(at(root.nearest_to("apiVersion"), "apiVersion", message))
        }
        None => Err(at(root, "apiVersion", format!("Required value: {}", known.0))),
    }
}

/// The value of a flag as its field would hold it.
fn flag_value(field: &Field, given: &GivenFlag, place: &Place) -> Result<Json, Mistake> {
    let (last, values) = (given.last(), given.counting());
    let mistake = |what: String| place.mistake("", format!("Invalid value: {what}"));
    let invalid = |must: &str| Err(mistake(format!("{last:?}: must be {must}")));
    match field.ty {
        Type::Bool => match last {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true.into()),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false.into()),
            _ => invalid("true or false"),
        },
        Type::Int32 => match last.parse::<i32>() {
            Ok(number) => Ok(number.into()),
            Err(_) => invalid("a whole number"),
        },
        Type::Int64 => match last.parse::<i64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => invalid("a whole number"),
        },
        Type::Duration if parse_duration(last).is_none() => {
            invalid("a duration with units, like 90s, 1m30s or 100ms")
        }
        Type::Quantity if Quantity::parse(last).is_err() => invalid("a quantity"),
        Type::List(_) => Ok(parts(values).map(Json::from).collect()),
        Type::Map(Type::List(_)) => {
            let mut map = json!({});
            for part in parts(values) {
                // The value may be a token: not repeated.
                let Some((name, value)) = part.split_once(':') else {
                    return Err(mistake("must be NAME:VALUE".to_owned()));
                };
                let (name, value) = (name.trim(), value.trim());
                if !map[name].is_array() {
                    map[name] = json!([]);
                }
                if let Some(list) = map[name].as_array_mut() {
                    list.push(value.into());
                }
            }
            Ok(map)
        }
        Type::Map(_) => {
            let mut map = json!({});
            let separator = given.flag.separator();
            for part in parts(values) {
                let bare = given.flag.takes_bare_keys().then_some((part, ""));
                let Some((key, value)) = part.split_once(separator).or(bare) else {
                    return Err(mistake(format!("{part:?}: must be KEY{separator}VALUE")));
                };
                map[key.trim()] = value.trim().into();
            }
            Ok(map)
        }
        Type::String
        | Type::Duration
        | Type::Quantity
        | Type::Float
        | Type::IntOrString
        | Type::Time
        | Type::Object(_)
        | Type::Any => Ok(last.into()),
    }
}

/// The parts of values that are separated by commas or given one by one.
fn parts(values: &[String]) -> impl Iterator<Item = &str> {
    values.iter().flat_map(|value| value.split(',')).filter(|part| !part.is_empty())
}

/// Reads and validates one configuration file that stands alone.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_and_validate(text: &[u8]) -> Result<Loaded, ConfigError> {
    let file = SourceFile { name: "config".into(), text: text.to_vec(), layer: Layer::Main };
    let bases = Bases { main: PathBuf::from("/"), working: PathBuf::from("/") };
    assemble(&[file], &[], &bases, &HostFacts::default())
}
