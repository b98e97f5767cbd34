//! The flags of `run`, as clap knows them: made from the table in `config`.

use crate::config::{Flag, GivenFlag, Takes, flags};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use std::ffi::OsString;

/// `nodelet run`
#[derive(Clone, Debug)]
pub struct RunArgs {
    /// What was given, in the table's order.
    pub flags: Vec<GivenFlag>,
}

impl Args for RunArgs {
    fn augment_args(cmd: Command) -> Command {
        cmd.args(flags().iter().map(arg))
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl FromArgMatches for RunArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = flags().iter().filter_map(|flag| {
            let values: Vec<String> = matches.get_many(flag.name)?.cloned().collect();
            Some(GivenFlag { flag, values })
        });
        Ok(Self { flags: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn arg(flag: &'static Flag) -> Arg {
    let mut help = sentence(flag.help());
    if let Some(default) = flag.default() {
        help.push_str(&format!(" [default: {}]", flags_for_fields(default)));
    }
    let hint = match flag.value_name() {
        "FILE" => ValueHint::FilePath,
        "PATH" | "SOCKET" => ValueHint::AnyPath,
        "DIR" => ValueHint::DirPath,
        _ => ValueHint::Other,
    };
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .value_name(flag.value_name())
        .value_hint(hint)
        .allow_negative_numbers(true)
        .help(help)
        .help_heading(flag.heading())
        .hide(!flag.is_acted_on());
    let arg = match flag.takes() {
        Takes::Value => arg,
        Takes::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
    };
    if flag.name == "v" { arg.short('v') } else { arg }
}

/// The documentation's note as a line of help: no code style, a capital letter, flags instead of
/// fields.
fn sentence(note: &str) -> String {
    let plain = flags_for_fields(&note.replace('`', ""));
    let mut letters = plain.chars();
    match letters.next() {
        Some(first) if !note.starts_with('`') && !plain.starts_with("--") => {
            first.to_uppercase().chain(letters).collect()
        }
        Some(_) | None => plain,
    }
}

/// `text` with fields of the configuration named as flags.
fn flags_for_fields(text: &str) -> String {
    let word = |word: &str| {
        let is_name = word.chars().any(char::is_uppercase);
        let flag = flags()
            .iter()
            .find(|flag| is_name && flag.target().is_some_and(|target| target.path == word));
        flag.map_or_else(|| word.to_owned(), |flag| format!("--{}", flag.name))
    };
    text.split_inclusive(|c: char| !c.is_alphanumeric())
        .map(|piece| {
            let name = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
            word(name) + &piece[name.len()..]
        })
        .collect()
}

/// Prepares arguments for clap: `run` is what is meant when no command is named, and `_` in a
/// flag's name is `-`, as for the kubelet.
pub(super) fn normalize(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let runs = match args.get(1).and_then(|first| first.to_str()) {
        None => true,
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(first) => first.starts_with('-'),
    };
    if runs {
        args.insert(args.len().min(1), "run".into());
    }
    if args.get(1).is_some_and(|command| command == "run") {
        for arg in args.iter_mut().skip(2).take_while(|arg| *arg != "--") {
            if let Some(text) = arg.to_str().filter(|text| text.starts_with("--")) {
                let (name, value) =
                    text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
                let name = name.replace('_', "-");
                *arg = value.map_or_else(|| name.clone(), |v| format!("{name}={v}")).into();
            }
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(args: &[&str]) -> Vec<OsString> {
        normalize(args.iter().map(OsString::from))
    }

    #[test]
    fn run_is_the_default_and_underscores_are_dashes() {
        for (given, meant) in [
            (&["nodelet"][..], &["nodelet", "run"][..]),
            (&["nodelet", "--v=2"], &["nodelet", "run", "--v=2"]),
            (&["nodelet", "-v", "2"], &["nodelet", "run", "-v", "2"]),
            (&["nodelet", "run", "--registry_burst=5"], &["nodelet", "run", "--registry-burst=5"]),
            (
                &["nodelet", "--node_labels", "a_b=c", "--root_dir=/a_b"],
                &["nodelet", "run", "--node-labels", "a_b=c", "--root-dir=/a_b"],
            ),
            (&["nodelet", "--help"], &["nodelet", "--help"]),
            (&["nodelet", "--version"], &["nodelet", "--version"]),
            (&["nodelet", "check", "--x_y"], &["nodelet", "check", "--x_y"]),
        ] {
            assert_eq!(normalized(given), normalized(meant), "{given:?}");
            assert_eq!(normalized(given), meant.iter().map(OsString::from).collect::<Vec<_>>());
        }
    }

    #[test]
    fn help_is_made_of_the_documentations_notes() {
        for (note, help) in [
            (
                "headers of the requests to staticPodURL",
                "Headers of the requests to --manifest-url",
            ),
            ("`pods` bounds all pods", "pods bounds all pods"),
            ("how often, `\"\"` for never", "How often, \"\" for never"),
        ] {
            assert_eq!(sentence(note), help);
        }
    }

    #[test]
    fn switches_take_their_value_after_an_equals_sign_only() {
        let parse = |args: &[&str]| {
            let cmd = RunArgs::augment_args(Command::new("run").no_binary_name(true));
            cmd.try_get_matches_from(args).and_then(|m| RunArgs::from_arg_matches(&m))
        };
        let given = |args: &[&str]| -> Vec<(&str, String)> {
            parse(args).unwrap().flags.iter().map(|g| (g.flag.name, g.values.join("|"))).collect()
        };
        assert_eq!(given(&["--fail-swap-on"]), [("fail-swap-on", "true".to_owned())]);
        assert_eq!(given(&["--fail-swap-on=false"]), [("fail-swap-on", "false".to_owned())]);
        assert!(parse(&["--fail-swap-on", "false"]).is_err());
        assert_eq!(given(&["--oom-score-adj", "-5"]), [("oom-score-adj", "-5".to_owned())]);
        assert_eq!(given(&["-v", "3"]), [("v", "3".to_owned())]);
        assert_eq!(given(&["--kubeconfig="]), [("kubeconfig", String::new())]);
        let twice = ["--cluster-dns=10.0.0.1", "--cluster-dns", "10.0.0.2"];
        assert_eq!(given(&twice), [("cluster-dns", "10.0.0.1|10.0.0.2".to_owned())]);
    }
}
