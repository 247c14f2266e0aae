//! `docs/conformance.md` is held against the tests that it names, so that neither can change without the other.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    env, fs,
    io::Write,
    path::Path,
};

/// The sections of the binding that have test files of their own.
const SECTIONS: std::ops::RangeInclusive<usize> = 1..=13;
const KEY_WORDS: [&str; 3] = ["MUST", "REQUIRED", "SHALL"];
/// In any case.
const KEY_WORDS_TOO: [&str; 2] = ["refused", "never"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Proved,
    Others,
    Later,
    NotMet,
}

#[derive(Debug)]
struct Row {
    id: String,
    section: String,
    status: Status,
    /// `file::test`
    tests: Vec<String>,
    /// What stands beside them.
    reason: String,
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn document() -> String {
    read("docs/conformance.md")
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// The rows of the tables under the binding's sections, in their order; `Count` comes before them.
fn rows(document: &str) -> Vec<Row> {
    let mut section = None;
    let mut rows = Vec::new();
    for line in document.lines() {
        if let Some(heading) = line.strip_prefix("##") {
            let heading = heading.trim_start_matches('#').trim();
            section = heading.split_once(' ').map(|(id, _)| id.to_owned());
            continue;
        }
        let Some(section) = section.as_ref().filter(|_| line.starts_with('|')) else {
            continue;
        };
        let cells = cells(line);
        let [id, binds, what, proof] = cells[..] else {
            panic!("not a row: {line}");
        };
        if id == "id" || id.starts_with("---") {
            continue;
        }
        assert!(!binds.is_empty() && !what.is_empty(), "{line}");
        let marks = [
            ("*others*", Status::Others),
            ("*later*", Status::Later),
            ("*not met*", Status::NotMet),
        ];
        let marked = marks.iter().find_map(|(mark, status)| {
            let reason = proof.strip_prefix(mark)?.strip_prefix(':')?;
            Some((*status, reason.trim()))
        });
        let (status, rest) = marked.unwrap_or((Status::Proved, proof));
        let mut parts = rest.split('`');
        let mut reason = parts.next().unwrap().to_owned();
        let mut tests = Vec::new();
        while let (Some(test), Some(between)) = (parts.next(), parts.next()) {
            tests.push(test.to_owned());
            reason.push_str(between);
        }
        rows.push(Row {
            id: id.to_owned(),
            section: section.clone(),
            status,
            tests,
            reason: reason.replace(',', "").trim().to_owned(),
        });
    }
    rows
}

#[test]
fn every_row_is_proved_or_says_why_not() {
    let rows = rows(&document());
    assert!(rows.len() > 300, "{}", rows.len());
    for row in &rows {
        match row.status {
            Status::Proved => {
                assert!(!row.tests.is_empty(), "{} names no test", row.id);
                assert_eq!(row.reason, "", "{} is proved, and says more", row.id);
            }
            _ => assert!(!row.reason.is_empty(), "{} gives no reason", row.id),
        }
    }
}

#[test]
fn ids_are_unique_and_in_order() {
    let mut seen = BTreeSet::new();
    let mut last: HashMap<String, usize> = HashMap::new();
    for row in rows(&document()) {
        assert!(seen.insert(row.id.clone()), "{} is there twice", row.id);
        let rest = row.id.strip_prefix(&row.section);
        let rest = rest.unwrap_or_else(|| panic!("{} stands in section {}", row.id, row.section));
        match rest.strip_prefix('-') {
            Some(number) => {
                let before = last.entry(row.section.clone()).or_default();
                *before += 1;
                assert_eq!(number, before.to_string(), "{}", row.id);
            }
            None => assert!(rest.len() > 1 && rest.starts_with('/'), "{}", row.id),
        }
    }
}

#[test]
fn every_test_that_is_named_is_there_and_runs() {
    let mut sources: HashMap<String, String> = HashMap::new();
    for row in rows(&document()) {
        for named in &row.tests {
            let (file, test) = named
                .split_once("::")
                .unwrap_or_else(|| panic!("{}: `{named}` is no `file::test`", row.id));
            let source = sources
                .entry(file.to_owned())
                .or_insert_with(|| source_of(file));
            assert!(
                is_test(source, test),
                "{} names `{named}`, which is no test of that file",
                row.id
            );
        }
    }
    assert!(sources.len() > 20, "{:?}", sources.keys());
}

/// A file of tests: `tests/x.rs`, or `tests/x/y.rs` where `tests/x/main.rs` has the module.
fn source_of(file: &str) -> String {
    if let Some((folder, module)) = file.split_once('/') {
        let main = read(&format!("tests/{folder}/main.rs"));
        let known = main.lines().any(|line| line == format!("mod {module};"));
        assert!(known, "tests/{folder}/main.rs has no module {module}");
    }
    read(&format!("tests/{file}.rs"))
}

/// Whether the function is there, with the attribute of a test or in a list of those that run on every store, and is
/// not ignored.
fn is_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let found = lines.iter().position(|line| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('))
    });
    let Some(at) = found else {
        return false;
    };
    let above = lines[..at].iter().rev();
    let above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let attributes: Vec<&&str> = above.filter(|line| line.starts_with("#[")).collect();
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return false;
    }
    let marked = |line: &&&str| {
        **line == "#[test]"
            || line.starts_with("#[tokio::test]")
            || line.starts_with("#[tokio::test(")
    };
    attributes.iter().any(marked) || is_listed(&lines, name)
}

/// Whether the name stands in an `on_every_store!` or `every_store!`, one to a line.
fn is_listed(lines: &[&str], name: &str) -> bool {
    let opens = |line: &&str| line.starts_with("on_every_store!(") || *line == "every_store! {";
    let mut rest = lines;
    while let Some(at) = rest.iter().position(opens) {
        rest = &rest[at + 1..];
        let mut listed = rest.iter().take_while(|line| !line.starts_with([')', '}']));
        if listed.any(|line| line.trim_end_matches(',') == name) {
            return true;
        }
    }
    false
}

#[test]
fn every_section_has_its_files_and_names_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("binding_"))
        .map(|name| name.strip_suffix(".rs").unwrap().to_owned())
        .collect();
    let mut of_section: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows(&document()) {
        let section = row.section.split('.').next().unwrap();
        let section = section.trim_end_matches(char::is_alphabetic).to_owned();
        let files = row
            .tests
            .iter()
            .map(|test| test.split_once("::").unwrap().0.to_owned());
        of_section.entry(section).or_default().extend(files);
    }
    let mut left = files.clone();
    for section in SECTIONS {
        let of = format!("binding_{section:02}_");
        let own: Vec<&String> = files.iter().filter(|file| file.starts_with(&of)).collect();
        assert!(
            !own.is_empty(),
            "section {section} has no file tests/{of}*.rs"
        );
        for file in own {
            let named = &of_section[&section.to_string()];
            assert!(
                named.contains(file),
                "section {section} names no test of {file}"
            );
            left.remove(file);
        }
    }
    assert!(left.is_empty(), "of no section: {left:?}");
}

#[test]
fn the_counts_are_those_of_the_rows() {
    let document = document();
    let rows = rows(&document);
    let stated = stated(&document);
    let mut total = [0; 5];
    for (section, _, counts) in stated.iter().filter(|(section, ..)| section != "total") {
        let of: Vec<&Row> = rows.iter().filter(|row| row.section == *section).collect();
        let with = |status| of.iter().filter(|row| row.status == status).count();
        let counted = [
            of.len(),
            with(Status::Proved),
            with(Status::Others),
            with(Status::Later),
            with(Status::NotMet),
        ];
        assert_eq!(
            *counts, counted,
            "section {section}: write its rows, and those proved, of others, later and not met, into the table of counts"
        );
        for (sum, count) in total.iter_mut().zip(counted) {
            *sum += count;
        }
    }
    let (_, key_words, last) = stated
        .iter()
        .find(|(section, ..)| section == "total")
        .unwrap();
    assert_eq!(*last, total, "the line `total` of the table of counts");
    assert_eq!(total[0], rows.len(), "every section has its line");
    let sum: usize = stated
        .iter()
        .filter(|(s, ..)| s != "total")
        .filter_map(|s| s.1)
        .sum();
    assert_eq!(*key_words, Some(sum));

    // And as the text says.
    let tests: BTreeSet<&String> = rows.iter().flat_map(|row| &row.tests).collect();
    let [all, proved, others, later, not_met] = total;
    let said = document.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        format!("{all} rows, by {} tests.", tests.len()),
        format!("Proved: {proved}."),
        format!("Duties of others: {others}."),
        format!("Later work: {later}."),
        format!("Not met: {not_met}."),
    ] {
        assert!(
            said.contains(&sentence),
            "the text at the top of docs/conformance.md must say: {sentence}"
        );
    }
}

/// What the table of counts says: the section, its key words, and rows by status.
fn stated(document: &str) -> Vec<(String, Option<usize>, [usize; 5])> {
    let table = document.split("## Count").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let lines = table.lines().filter(|line| line.starts_with('|')).skip(2);
    lines
        .map(|line| {
            let cells = cells(line);
            let numbers: Vec<usize> = cells[2..].iter().map(|n| n.parse().unwrap()).collect();
            let key_words = cells[1].parse().ok();
            (cells[0].to_owned(), key_words, numbers.try_into().unwrap())
        })
        .collect()
}

/// A sentence of the binding that nobody has read would show here. The text is not ours to ship.
#[test]
fn the_key_words_of_each_section_are_as_many_as_were_read() {
    let Some(path) = env::var_os("RCTP_BINDING") else {
        // Past the capture of the output, which only failures would show.
        let note =
            b"not run: the count of the binding's key words, which needs RCTP_BINDING=<its text>\n";
        std::io::stderr().write_all(note).unwrap();
        return;
    };
    let text = fs::read_to_string(path).expect("RCTP_BINDING names a text");
    let stated = stated(&document());
    let mut sections = stated
        .iter()
        .filter_map(|(id, words, _)| Some((id, (*words)?)));
    let mut sections = sections
        .by_ref()
        .filter(|(id, _)| *id != "total")
        .peekable();
    let mut counted: Vec<(&String, usize, usize)> = Vec::new();
    for line in text.lines() {
        let heading = line.trim_start_matches('#').trim_start();
        let begins = |id: &str| {
            let rest = heading.strip_prefix(id);
            rest.is_some_and(|rest| rest.starts_with(". ") || rest.starts_with(' '))
        };
        if let Some((id, words)) = sections.next_if(|(id, _)| begins(id)) {
            counted.push((id, words, 0));
        }
        if let Some((.., found)) = counted.last_mut() {
            let small = line.to_lowercase();
            let counts = KEY_WORDS.iter().map(|word| line.matches(word).count());
            let too = KEY_WORDS_TOO.iter().map(|word| small.matches(word).count());
            *found += counts.chain(too).sum::<usize>();
        }
    }
    assert_eq!(
        sections.next(),
        None,
        "a section that the text does not have"
    );
    for (id, words, found) in counted {
        assert_eq!(found, words, "section {id}: read it again");
    }
}

#[test]
fn what_is_no_test_is_not_taken_for_one() {
    let source = "\
        #[test]\n/// Says what.\nfn a() {}\n\
        #[tokio::test(flavor = \"multi_thread\")]\nasync fn b() {}\n\
        on_every_store!(\n    c,\n    d\n);\nasync fn c(backing: Backing) {}\n\
        fn helper() {}\nasync fn left_out(backing: Backing) {}\n\
        #[test]\n#[ignore = \"slow\"]\nfn ignored() {}\n\
        // #[test]\n// fn commented() {}\n\
        #[test]\nfn longer_name() {}\n";
    for name in ["a", "b", "c", "longer_name"] {
        assert!(is_test(source, name), "{name}");
    }
    // `d` is listed, but not there.
    for name in [
        "d",
        "helper",
        "left_out",
        "ignored",
        "commented",
        "longer",
        "name",
    ] {
        assert!(!is_test(source, name), "{name}");
    }
}
