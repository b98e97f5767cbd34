//! Which directory entries are manifests, by name.

/// Why an entry of this name is not looked at; `None` for a manifest.
pub(super) fn why_skipped(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let backup_ends = ["~", ".bak", ".orig", ".old", ".save", ".rpmsave", ".rpmnew", ".rpmorig"];
    let temporary_ends = [".swp", ".swo", ".swx", ".tmp", ".temp", ".part", ".filepart"];
    let dpkg = [".dpkg-", ".ucf-"];
    let why = if lower.starts_with('#') && lower.ends_with('#') || name.starts_with(".#") {
        "an editor's file"
    } else if temporary_ends.iter().any(|end| lower.ends_with(end)) {
        "a temporary or swap file"
    } else if backup_ends.iter().any(|end| lower.ends_with(end))
        || dpkg.iter().any(|part| lower.contains(part))
    {
        "a backup file"
    } else if name.starts_with('.') {
        "a hidden file"
    } else if ![".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end)) {
        "not a *.yaml, *.yml or *.json file"
    } else {
        return None;
    };
    Some(why)
}

#[cfg(test)]
mod tests {
    use super::why_skipped;

    #[test]
    fn takes_manifests_and_says_why_it_skips_the_rest() {
        for name in ["a.yaml", "a.yml", "a.json", "a.b.yaml", "bak.yaml", "tmp.yaml", "ä.yaml"] {
            assert_eq!(why_skipped(name), None, "{name}");
        }
        for (name, why) in [
            (".a.yaml", "a hidden file"),
            ("..data", "a hidden file"),
            (".a.yaml.swp", "a temporary or swap file"),
            ("a.yaml~", "a backup file"),
            ("#a.yaml#", "an editor's file"),
            (".#a.yaml", "an editor's file"),
            ("a.yaml.bak", "a backup file"),
            ("a.yaml.dpkg-dist", "a backup file"),
            (".a.yaml.dpkg-new", "a backup file"),
            ("a.dpkg-old.yaml", "a backup file"),
            ("a.yaml.rpmnew", "a backup file"),
            ("a.yaml.tmp", "a temporary or swap file"),
            ("README", "not a *.yaml, *.yml or *.json file"),
            ("a.YAML", "not a *.yaml, *.yml or *.json file"),
            ("4913", "not a *.yaml, *.yml or *.json file"),
            ("", "not a *.yaml, *.yml or *.json file"),
        ] {
            assert_eq!(why_skipped(name), Some(why), "{name}");
        }
    }
}
