//! What the documents promise about the tests is there.

use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn every_reading_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/interpretations.md")).expect("the document");
    let mut readings = BTreeSet::new();
    for line in text
        .lines()
        .filter(|line| line.starts_with("| R") || line.starts_with("| I"))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, .., tests] = cells.as_slice() else {
            panic!("{line}");
        };
        readings.insert((*name).to_owned());
        let mut named = tests.split('`').skip(1).step_by(2).peekable();
        assert!(
            named.peek().is_some() || tests.contains("later"),
            "{name} names neither a test nor later work"
        );
        for test in named {
            let exists = [
                format!("tests/{test}.rs"),
                format!("tests/{test}/main.rs"),
                format!("tests/{test}/run"),
                format!("src/{}.rs", test.replace("::", "/")),
            ];
            assert!(
                exists.iter().any(|path| root.join(path).exists()),
                "{name} names {test}, which is not there"
            );
        }
    }
    for number in 1..=33 {
        assert!(readings.contains(&format!("R{number}")), "R{number}");
    }
}

#[test]
fn no_document_has_a_gap() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in [
        "README.md",
        "CHANGELOG.md",
        "docs/approvals.md",
        "docs/architecture.md",
        "docs/client.md",
        "docs/conformance.md",
        "docs/discovery.md",
        "docs/interpretations.md",
        "docs/operations.md",
        "docs/webhooks.md",
    ] {
        let text = fs::read_to_string(root.join(name)).expect("the document");
        assert!(!text.contains("@@"), "{name}");
    }
}
