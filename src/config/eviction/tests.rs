#![allow(clippy::unwrap_used, reason = "tests")]

use crate::{
    config::{
        Config, ConfigError, GivenFlag, HostFacts, Loaded,
        assemble::{SourceFile, assemble},
        flag, parse_and_validate,
        read::Bases,
        tree::Layer,
    },
    pressure::core::{MemorySignal, StaticPods},
};
use std::collections::BTreeMap;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const OWN_HEAD: &str = "apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n";
const DEFAULT: &str = "memory.available<100Mi allocatableMemory.available<100Mi nodefs.available<10% \
     nodefs.inodesFree<5% imagefs.available<15% imagefs.inodesFree<5%";

/// Main file, drop-ins and flags; `None`: no main file.
fn load(
    main: Option<&str>,
    drop_ins: &[&str],
    flags: &[(&str, &str)],
) -> Result<Loaded, ConfigError> {
    let file = |name: &str, text: &str, layer| SourceFile {
        name: name.into(),
        text: format!("{HEAD}{text}").into_bytes(),
        layer,
    };
    let mut files: Vec<SourceFile> =
        main.map(|text| file("main", text, Layer::Main)).into_iter().collect();
    files.extend(drop_ins.iter().map(|text| file("drop-in", text, Layer::DropIn)));
    let given = |(name, value): &(&str, &str)| GivenFlag {
        flag: flag(name).unwrap(),
        values: vec![(*value).to_owned()],
    };
    let flags: Vec<_> = flags.iter().map(given).collect();
    let bases = Bases { main: "/".into(), working: "/".into() };
    assemble(&files, &flags, &bases, &HostFacts::default())
}

fn told(config: &Config) -> String {
    let texts: Vec<String> = config
        .eviction
        .thresholds
        .iter()
        .map(|threshold| match threshold.min_reclaim {
            Some(reclaim) => format!("{threshold}+{reclaim}"),
            None => threshold.to_string(),
        })
        .collect();
    texts.join(" ")
}

#[test]
fn hard_thresholds_come_from_defaults_files_and_flags() {
    let one = "evictionHard: {pid.available: '100'}\n";
    let pid = "pid.available<100";
    let all = &format!("{DEFAULT} {pid}");
    for (main, drop_ins, flags, want) in [
        (None, vec![], vec![], DEFAULT),
        (Some(""), vec![], vec![], DEFAULT),
        (Some("evictionHard: null\n"), vec![], vec![], DEFAULT),
        (Some("evictionHard: {}\n"), vec![], vec![], ""),
        (Some(one), vec![], vec![], pid),
        (
            Some("evictionHard: {pid.available: '100'}\nmergeDefaultEvictionSettings: true\n"),
            vec![],
            vec![],
            all,
        ),
        // Over the default, where the main file has none.
        (None, vec![one], vec![], all),
        (Some(""), vec![one], vec![], all),
        (Some("evictionHard: {}\n"), vec![one], vec![], pid),
        (Some(""), vec!["evictionHard: null\n"], vec![], ""),
        (
            Some(one),
            vec!["evictionHard: {pid.available: null, nodefs.available: 1Gi}\n"],
            vec![],
            "nodefs.available<1Gi",
        ),
        // A flag's map replaces everything.
        (None, vec![], vec![("eviction-hard", "pid.available<100")], pid),
        (
            Some(one),
            vec![one],
            vec![("eviction-hard", "nodefs.available<5%")],
            "nodefs.available<5%",
        ),
        (Some(one), vec![], vec![("eviction-hard", "")], ""),
        (
            None,
            vec![],
            vec![
                ("eviction-hard", "pid.available<100"),
                ("eviction-soft", "pid.available<200, imagefs.available<20%"),
                ("eviction-soft-grace-period", "pid.available=1m,imagefs.available=0s"),
                ("eviction-minimum-reclaim", "pid.available=50"),
            ],
            "imagefs.available<20% pid.available<100+50 pid.available<200 for 1m0s+50",
        ),
    ] {
        let config = load(main, &drop_ins, &flags).unwrap().config;
        assert_eq!(told(&config), want, "{main:?} {drop_ins:?} {flags:?}");
        assert_eq!(config.notices, Vec::<String>::new());
    }
}

#[test]
fn bounded_pods_have_the_memory_threshold_of_the_machine() {
    let hard =
        "evictionHard: {memory.available: 1Gi}\nevictionMinimumReclaim: {memory.available: 1Mi}\n";
    let both = "memory.available<1Gi+1Mi allocatableMemory.available<1Gi+1Mi";
    for (enforce, want) in [
        ("", both),
        ("enforceNodeAllocatable: [pods]\n", both),
        ("enforceNodeAllocatable: [none]\n", "memory.available<1Gi+1Mi"),
        ("cgroupsPerQOS: false\n", "memory.available<1Gi+1Mi"),
    ] {
        let config = load(Some(&format!("{hard}{enforce}")), &[], &[]).unwrap().config;
        assert_eq!(told(&config), want, "{enforce}");
    }
}

#[test]
fn the_other_settings_land_where_they_belong() {
    let text = format!(
        "{HEAD}evictionPressureTransitionPeriod: 1m\nevictionMaxPodGracePeriod: 60\n\
         localStorageCapacityIsolation: false\n---\n{OWN_HEAD}memorySignal: memAvailable\n\
         staticPodEviction: never\npriorityClasses: {{batch: -5, web.example: 1000000000}}\n"
    );
    let config = parse_and_validate(text.as_bytes()).unwrap().config;
    let eviction = &config.eviction;
    assert_eq!((eviction.transition.as_secs(), eviction.max_pod_grace), (60, 60));
    assert!(!eviction.local_storage_limits);
    assert_eq!(eviction.memory_signal, MemorySignal::MemAvailable);
    assert_eq!(eviction.static_pods, StaticPods::Never);
    let classes = [("batch".to_owned(), -5), ("web.example".to_owned(), 1_000_000_000)];
    assert_eq!(config.pods.priority_classes, BTreeMap::from(classes));

    let grace = |text: &str| load(Some(text), &[], &[]).unwrap().config.eviction.max_pod_grace;
    assert_eq!(grace("evictionMaxPodGracePeriod: -1\n"), u32::MAX);
    let transition = |text: &str, flags: &[(&str, &str)]| {
        load(Some(text), &[], flags).unwrap().config.eviction.transition.as_secs()
    };
    assert_eq!(transition("evictionPressureTransitionPeriod: 0s\n", &[]), 300);
    assert_eq!(transition("", &[("eviction-pressure-transition-period", "0s")]), 0);
}

#[test]
fn entries_without_effect_are_told() {
    let text = "evictionHard: {containerfs.available: 5%, pid.available: 0%}\n\
        evictionSoftGracePeriod: {memory.available: 1m}\nevictionMinimumReclaim: {pid.available: '5'}\n";
    assert_eq!(
        load(Some(text), &[], &[]).unwrap().config.notices,
        [
            "main: line 3, column 39: evictionHard[containerfs.available]: containerfs.available: not acted on: containerfs uses the thresholds of its file system",
            "main: line 4, column 45: evictionSoftGracePeriod[memory.available]: memory.available: not acted on: evictionSoft has no threshold for it",
            "main: line 5, column 41: evictionMinimumReclaim[pid.available]: pid.available: not acted on: there is no threshold for it",
        ]
    );
}

#[test]
fn everything_wrong_is_told_at_once() {
    let text = format!(
        "evictionHard: {{memory.availabel: 100Mi, nodefs.available: -5%, pid.available: 7}}\n\
         evictionSoft: {{memory.available: 200Mi}}\nevictionPressureTransitionPeriod: -1s\n---\n\
         {OWN_HEAD}memorySignal: free\nstaticPodEviction: always\n\
         priorityClasses: {{system-x: 1, Big: 5, high: 1000000001, low: x}}\n"
    );
    let flags = [("eviction-minimum-reclaim", "pid.available<5"), ("eviction-hard", "a=5")];
    let mistakes = |flags: &[(&str, &str)]| {
        let error = load(Some(&text), &[], flags).unwrap_err();
        error.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let want = [
        "main: line 3, column 34: evictionHard[memory.availabel]: unsupported eviction signal memory.availabel; did you mean \"memory.available\"?",
        "main: line 3, column 59: evictionHard[nodefs.available]: eviction percentage threshold nodefs.available must be >= 0%: -5%",
        "main: line 3, column 79: evictionHard[pid.available]: Invalid value: 7: must be text; YAML reads this as a number, put it in quotes",
        "main: line 4, column 34: evictionSoft[memory.available]: grace period must be specified for the soft eviction threshold memory.available",
        "main: line 5, column 35: evictionPressureTransitionPeriod: Invalid value: \"-1s\": must be a duration with units, like 90s, 1m30s or 100ms",
        "main: line 9, column 15: memorySignal: Invalid value: \"free\": must be workingSet or memAvailable",
        "main: line 10, column 20: staticPodEviction: Invalid value: \"always\": must be ranked or never",
        "main: line 11, column 29: priorityClasses[system-x]: Invalid value: \"system-x\": must not begin with \"system-\": those are the system's own and need no entry",
        "main: line 11, column 37: priorityClasses[Big]: Invalid value: \"Big\": must be lower case letters, digits, '-' and '.', begin and end with a letter or digit, and be at most 253 characters long",
        "main: line 11, column 46: priorityClasses[high]: Invalid value: 1000000001: must be at most 1000000000",
        "main: line 11, column 63: priorityClasses[low]: Invalid value: \"x\": must be a whole number",
    ];
    assert_eq!(mistakes(&[]), want);
    assert_eq!(
        mistakes(&flags)[11..],
        [
            "--eviction-minimum-reclaim: Invalid value: \"pid.available<5\": must be KEY=VALUE",
            "--eviction-hard: Invalid value: \"a=5\": must be KEY<VALUE",
        ]
    );
}
