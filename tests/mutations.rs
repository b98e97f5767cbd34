//! Manifests, configurations and kubeconfigs, broken in thousands of ways, go the way that the agent
//! sends them: nothing panics, nothing takes long, memory stays bounded, and every verdict makes
//! sense.
//!
//! The seed is printed; `MUTATION_SEED=N` runs the same mutations again, `MUTATIONS=N` sets how
//! many. `make soak` makes a million of them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use nodelet::{
    api::{Clients, Connector, Credentials},
    clock,
    config::parse_and_validate,
    manifest::{Context, DecodedDocument, Settings, decode, decode_document},
    model::{Problem, SourceKind, k8s},
    names::HostNames,
    podspec::{
        Amounts, EnvContext, MAX_ENTRY_BYTES, MAX_EXEC_BYTES, build_env, check_expansion,
        expand_command,
    },
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Duration,
};

/// What is mutated, and what is done with it. `check` panics when something does not make sense.
struct Subject {
    name: &'static str,
    /// Directories of fixtures, below `tests/`.
    fixtures: &'static [&'static str],
    /// One in so many mutations is of it.
    part: u64,
    check: fn(&[u8]),
}

const SUBJECTS: &[Subject] = &[
    Subject {
        name: "manifests",
        fixtures: &["manifests/good", "manifests/bad"],
        part: 2,
        check: check_manifest,
    },
    Subject { name: "configurations", fixtures: &["config"], part: 2, check: check_configuration },
    // Each that is accepted without a certificate authority reads those of the system.
    Subject { name: "kubeconfigs", fixtures: &["kubeconfigs"], part: 10, check: check_kubeconfig },
];

const MUTATIONS: u64 = 30_000;
/// Far more than any text of a few KiB takes, also in a debug build on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);
/// Far more than the readers need for texts of a few KiB.
const MOST_MEMORY_KIB: u64 = 400 << 10;

#[test]
fn mutated_texts_get_verdicts() {
    let count = number("MUTATIONS").unwrap_or(MUTATIONS);
    let seed = number("MUTATION_SEED").unwrap_or_else(random_seed);
    println!("MUTATION_SEED={seed} MUTATIONS={count}");
    for subject in SUBJECTS {
        let texts = fixtures(subject.fixtures);
        let count = count / subject.part;
        let threads = 2;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let texts = &texts;
                scope.spawn(move || {
                    for n in (thread..count).step_by(2) {
                        let mut random = Random(seed.wrapping_add(n.wrapping_mul(0x9E37_79B9)));
                        let text = mutated(texts, &mut random);
                        run(subject, &text, &format!("seed {seed}, mutation {n}"));
                    }
                });
            }
        });
    }
    let peak = peak_memory_kib();
    assert!(peak < MOST_MEMORY_KIB, "peak memory {peak} KiB");
}

fn run(subject: &Subject, text: &[u8], which: &str) {
    let started = clock::now().boot;
    let outcome = catch_unwind(AssertUnwindSafe(|| (subject.check)(text)));
    let took = clock::now().boot.saturating_sub(started);
    let shown = || String::from_utf8_lossy(&text[..text.len().min(4000)]).into_owned();
    assert!(outcome.is_ok(), "{}, {which}: panic at\n{}", subject.name, shown());
    assert!(took < LONGEST, "{}, {which}: took {took:?}\n{}", subject.name, shown());
}

fn check_manifest(text: &[u8]) {
    let settings = Settings::default();
    let context = Context {
        node_name: "node",
        source: SourceKind::File,
        location: "/manifests/mutated.yaml",
        seen: clock::now().wall,
        settings: &settings,
    };
    let lines = text.split(|byte| *byte == b'\n').count();
    let sensible = |problem: &Problem| {
        assert!(!problem.message.is_empty(), "{problem:?}");
        // Lines also end in a lone CR or in U+0085, which the count above leaves out.
        let odd = text.contains(&b'\r') || text.contains(&0x85);
        assert!(problem.position.line <= lines + 1 || odd, "{problem:?} of {lines} lines");
        let length = problem.to_string().len();
        assert!(length < 8 << 10, "a problem of {length} bytes");
    };
    match decode(text, &context) {
        Err(problem) => sensible(&problem),
        Ok(file) => {
            for document in &file.documents {
                document.warnings.iter().for_each(sensible);
                document.result.as_ref().err().into_iter().flatten().for_each(sensible);
                check_document(document, &context);
            }
        }
    }
}

fn check_configuration(text: &[u8]) {
    match parse_and_validate(text) {
        // What was accepted can be printed.
        Ok(loaded) => assert!(!format!("{loaded:?}").is_empty()),
        Err(error) => {
            assert!(!error.mistakes.is_empty(), "refused without a reason");
            for mistake in &error.mistakes {
                // A value may be repeated as it was written.
                let length = mistake.to_string().len();
                assert!(length < (8 << 10) + 4 * text.len(), "a mistake of {length} bytes");
            }
        }
    }
}

/// Read as the agent reads it, and made into clients.
fn check_kubeconfig(text: &[u8]) {
    thread_local! {
        static DIRECTORY: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    let path = DIRECTORY.with(|directory| directory.path().join("kubeconfig"));
    std::fs::write(&path, text).unwrap();
    let told = |error: &dyn std::fmt::Display| {
        let error = error.to_string();
        assert!(!error.is_empty() && error.len() < (8 << 10) + text.len(), "{error}");
    };
    match Credentials::read(&path) {
        Err(error) => told(&error),
        Ok(credentials) => match Connector::new(credentials, "test", HostNames::of_api_server()) {
            Err(error) => told(&error),
            Ok(connector) => {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let _entered = runtime.enter();
                let (_header, authorization) = tokio::sync::watch::channel(None);
                assert!(!Clients::new(&connector, &authorization).server.is_empty());
            }
        },
    }
}

fn check_document(document: &DecodedDocument, context: &Context<'_>) {
    match &document.result {
        Err(problems) => assert!(!problems.is_empty(), "rejected without a reason"),
        Ok(pod) => {
            assert_eq!(document.key.as_ref(), Some(&pod.key));
            assert!(!pod.uid.as_str().is_empty());
            check_expansion_is_bounded(&pod.pod);
            let as_written = serde_json::from_str(&document.as_written).unwrap();
            let again = decode_document(&as_written, &document.origin, context);
            assert_eq!(again.as_ref().map(|(pod, _)| pod), Ok(pod), "kept and read back");
        }
    }
}

/// What an accepted pod makes the agent compute for its containers has a bound.
fn check_expansion_is_bounded(pod: &k8s::Pod) {
    let allocatable = Amounts::default();
    let cx = EnvContext {
        node_name: "node",
        host_ips: &[],
        pod_ips: &[],
        allocatable: &allocatable,
        objects: &nodelet::model::NodeObjects::default(),
    };
    let spec = pod.spec.as_ref().unwrap();
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        // What depends on the node may still be refused at the start.
        let Ok(env) = build_env(pod, container, &cx) else { continue };
        let expanded = expand_command(container, &env);
        let words = expanded.command.iter().chain(&expanded.args).map(String::len);
        let lengths = env.iter().map(|(name, value)| name.len() + 1 + value.len()).chain(words);
        let lengths: Vec<usize> = lengths.collect();
        assert!(lengths.iter().all(|length| *length < MAX_ENTRY_BYTES), "{lengths:?}");
        assert!(lengths.iter().sum::<usize>() < MAX_EXEC_BYTES, "{lengths:?}");
    }
}

/// Variables, arguments and sub-paths that refer to each other in random ways: what is refused is
/// refused at once, and what is accepted has a bound.
#[test]
fn random_references_never_multiply_beyond_the_bound() {
    let seed = number("MUTATION_SEED").unwrap_or_else(random_seed);
    println!("MUTATION_SEED={seed}");
    let started = clock::now().boot;
    let (mut refused, mut accepted) = (0, 0);
    for n in 0..2_000 {
        let mut random = Random(seed.wrapping_add(n));
        let container = referring_container(&mut random);
        match check_expansion(&container) {
            Ok(()) => accepted += 1,
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 500, "{error}");
            }
        }
        let spec = k8s::PodSpec { containers: vec![container], ..Default::default() };
        check_expansion_is_bounded(&k8s::Pod { spec: Some(spec), ..Default::default() });
    }
    assert!(refused > 20 && accepted > 100, "{refused} refused, {accepted} accepted");
    let took = clock::now().boot.saturating_sub(started);
    assert!(took < Duration::from_secs(120), "took {took:?}");
    let peak = peak_memory_kib();
    assert!(peak < MOST_MEMORY_KIB, "peak memory {peak} KiB");
}

fn referring_container(random: &mut Random) -> k8s::Container {
    let names = 1 + random.below(12);
    let width = 1 + random.below(12);
    let mut text = |before: usize| {
        (0..random.below(width + 1)).fold(String::new(), |text, _| {
            let part = match random.below(4) {
                0 => "x".repeat(random.below(300)),
                1 => ["$", "$$", "$(", ")", "$(NONE)"][random.below(5)].to_owned(),
                _ => format!("$(V{})", random.below(before.max(1))),
            };
            text + &part
        })
    };
    let variables = (0..2 * names)
        .map(|n| k8s::EnvVar {
            name: format!("V{}", n % names),
            value: Some(text(n.min(names))),
            ..Default::default()
        })
        .collect();
    k8s::Container {
        name: "c".to_owned(),
        command: Some((0..3).map(|_| text(names)).collect()),
        args: Some((0..3).map(|_| text(names)).collect()),
        env: Some(variables),
        ..Default::default()
    }
}

fn fixtures(directories: &[&str]) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut paths: Vec<_> = directories
        .iter()
        .flat_map(|directory| std::fs::read_dir(root.join(directory)).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let texts: Vec<Vec<u8>> = paths
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "json"))
        .map(|path| std::fs::read(path).unwrap())
        // The verdicts at the end of a fixture are comments: nothing to mutate.
        .map(|text| match text.windows(10).position(|w| w == b"# verdict:") {
            Some(end) => text[..end].to_vec(),
            None => text,
        })
        .collect();
    assert!(!texts.is_empty(), "no fixtures in {directories:?}");
    texts
}

/// What YAML, JSON and Kubernetes give a meaning to.
const TOKENS: &[&str] = &[
    "'",
    "\"",
    ":",
    ": ",
    "\n",
    "\n- ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "[[",
    "{{",
    ",",
    "#",
    " #",
    "&a ",
    "*a ",
    "*a, ",
    "!!str ",
    "!!int ",
    "!x ",
    "|",
    ">",
    "|-\n",
    "\t",
    " ",
    "  ",
    "?",
    "? ",
    "~",
    "<<: ",
    "<<: *a\n",
    "%YAML 1.1\n",
    "@",
    "\\",
    "\\u0000",
    "\\ud800",
    "---\n",
    "...\n",
    "é",
    "\u{1f600}",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
    "\r\n",
    "\r",
    "\0",
    "\u{7f}",
    "null",
    "true",
    "yes",
    "0",
    "-1",
    "-0.0",
    "0x",
    "0644",
    "1e999",
    "-1e-999",
    "9223372036854775808",
    "99999999999999999999999999",
    "0.000000000000000000000001",
    ".inf",
    "1Ei",
    "1e100",
    "-1Mi",
    "",
    "name: ",
    "image: ",
    "metadata",
    "spec",
    "containers",
    "initContainers",
    "kind: List\nitems:\n",
    "kind: PodList",
    "resources",
    "limits",
    "../",
    "/",
    "a/b/c",
    "[0]",
    "]",
    "..",
    "$(A)",
    "$(",
];

fn mutated(texts: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut text = random.choice(texts).clone();
    for _ in 0..=random.below(4) {
        mutate(&mut text, texts, random);
    }
    text
}

fn mutate(text: &mut Vec<u8>, texts: &[Vec<u8>], random: &mut Random) {
    let from = random.below(text.len() + 1);
    let width = [1, 1, 2, 5, 20, 80][random.below(6)];
    let to = (from + width).min(text.len());
    let token = random.choice(TOKENS).as_bytes().to_vec();
    match random.below(10) {
        0 => drop(text.drain(from..to)),
        1 => drop(text.splice(from..from, token)),
        2 => drop(text.splice(from..to, token)),
        3 => {
            let copy = text[from..to].to_vec();
            drop(text.splice(from..from, copy));
        }
        4 => {
            let times = [10, 100, 1000][random.below(3)];
            drop(text.splice(from..from, token.repeat(times)));
        }
        5 => text.truncate(from),
        6 => {
            if let Some(byte) = text.get_mut(from) {
                *byte ^= 1 << random.below(8);
            }
        }
        7 => {
            let other = random.choice(texts);
            let start = random.below(other.len() + 1);
            let end = (start + 200).min(other.len());
            drop(text.splice(from..to, other[start..end].iter().copied()));
        }
        8 => swap_lines(text, random),
        // As a power failure leaves a file that was being written.
        _ => text[from..to].fill(0),
    }
}

fn swap_lines(text: &mut Vec<u8>, random: &mut Random) {
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    let (a, b) = (random.below(lines.len()), random.below(lines.len()));
    lines.swap(a, b);
    *text = lines.join(&b'\n');
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn choice<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

fn random_seed() -> u64 {
    let boot = clock::now().boot;
    u64::from(boot.subsec_nanos()) ^ boot.as_secs()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var_os(variable)?.to_str()?.parse().ok()
}

fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
