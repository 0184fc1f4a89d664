//! The imports among the modules of a crate. A module and everything inside it count as one.
//! Circles are searched among the children of each module. An item that a module re-exports from a
//! child counts as the child's.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use syn::{Item, UseTree, visit::Visit};

use crate::read;

/// A path inside the crate, from its root: `["coordinator", "peers", "Peer"]`.
type Names = Vec<String>;

/// A module of a crate's sources, without its tests.
#[derive(Default)]
pub(crate) struct Module {
    children: BTreeMap<String, Module>,
    /// Names that this module re-exports, and the paths of their sources.
    exports: BTreeMap<String, Names>,
    /// Paths that the module itself uses, without those of its children.
    uses: BTreeSet<Names>,
}

impl Module {
    /// Reads the crate whose root module is the file `entry` in the folder `source`.
    pub(crate) fn read(entry: &Path, source: &Path) -> Self {
        Self::of(&items(entry), &[], source)
    }

    /// Reads a module from its items. The files of its children lie in `folder`.
    fn of(items: &[Item], here: &[String], folder: &Path) -> Self {
        let mut module = Self::default();
        for item in items.iter().filter(|item| !is_test(item)) {
            match item {
                Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let inside = [here, std::slice::from_ref(&name)].concat();
                    let below = folder.join(&name);
                    let content = match &child.content {
                        Some((_, items)) => Self::of(items, &inside, &below),
                        None => Self::of(&items_of(&below), &inside, &below),
                    };
                    module.children.insert(name, content);
                }
                Item::Use(item) => {
                    let mut leaves = Vec::new();
                    walk(&item.tree, &mut Vec::new(), &mut leaves);
                    for (path, name) in leaves {
                        let Some(path) = absolute(&path, here) else {
                            continue;
                        };
                        if !matches!(item.vis, syn::Visibility::Inherited) {
                            module.exports.insert(name, path.clone());
                        }
                        module.uses.insert(path);
                    }
                }
                item => Paths { here, found: &mut module.uses }.visit_item(item),
            }
        }
        // Re-exports name a child without `self`.
        for path in module.exports.values_mut() {
            if path.len() == 1 && module.children.contains_key(&path[0]) {
                *path = [here, path].concat();
            }
        }
        module
    }

    /// Returns the sibling modules that import each other in a circle, at every level. Each circle
    /// is in alphabetical order.
    pub(crate) fn circles(&self) -> Vec<Names> {
        let mut found = Vec::new();
        self.circles_below(self, &[], &mut found);
        found
    }

    fn circles_below(&self, crate_root: &Self, here: &[String], found: &mut Vec<Names>) {
        let mut arrows: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (name, child) in &self.children {
            let mut used = BTreeSet::new();
            child.used(&mut used);
            let siblings = used.iter().filter_map(|path| {
                let path = crate_root.resolve(path);
                let sibling = path.strip_prefix(here)?.first()?.clone();
                (sibling != *name && self.children.contains_key(&sibling)).then_some(sibling)
            });
            arrows.insert(name, siblings.collect());
        }
        found.extend(
            circles_of(&arrows)
                .into_iter()
                .map(|circle| circle.into_iter().map(|name| [here, &[name]].concat().join("::")).collect()),
        );
        for (name, child) in &self.children {
            child.circles_below(crate_root, &[here, std::slice::from_ref(name)].concat(), found);
        }
    }

    fn used(&self, all: &mut BTreeSet<Names>) {
        all.extend(self.uses.iter().cloned());
        self.children.values().for_each(|child| child.used(all));
    }

    /// Follows re-exports to the module of an item.
    fn resolve(&self, path: &[String]) -> Names {
        let mut path = path.to_vec();
        for _ in 0..path.len() + 4 {
            let mut module = self;
            let mut replaced = None;
            for (depth, name) in path.iter().enumerate() {
                if let Some(child) = module.children.get(name) {
                    module = child;
                } else {
                    replaced = module.exports.get(name).map(|source| (depth, source.clone()));
                    break;
                }
            }
            match replaced {
                Some((depth, source)) if source != path[..=depth] => {
                    path = [&source[..], &path[depth + 1..]].concat();
                }
                _ => return path,
            }
        }
        path
    }
}

fn items(file: &Path) -> Vec<Item> {
    syn::parse_file(&read(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items
}

/// Returns the items of the module with children in `folder`: `folder.rs` or `folder/mod.rs`.
fn items_of(folder: &Path) -> Vec<Item> {
    let files = [folder.with_extension("rs"), folder.join("mod.rs")];
    let file: Option<&PathBuf> = files.iter().find(|file| file.exists());
    items(file.unwrap_or_else(|| panic!("no file of the module {}", folder.display())))
}

fn is_test(item: &Item) -> bool {
    let Item::Mod(module) = item else {
        return false;
    };
    module.attrs.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// Collects each path of a `use` and the name that it introduces.
fn walk(tree: &UseTree, path: &mut Names, leaves: &mut Vec<(Names, String)>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            walk(&part.tree, path, leaves);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, path, leaves)),
        UseTree::Name(name) => leaves.push((with(path, &name.ident), name.ident.to_string())),
        UseTree::Rename(name) => leaves.push((with(path, &name.ident), name.rename.to_string())),
        UseTree::Glob(_) => leaves.push((path.clone(), "*".to_owned())),
    }
}

fn with(path: &[String], last: &syn::Ident) -> Names {
    let mut path = path.to_vec();
    if last != "self" {
        path.push(last.to_string());
    }
    path
}

/// Returns a path as the crate's root sees it; `None` for a path into another crate. A re-export's
/// path without `crate`, `self` or `super` stays relative; its module completes it.
fn absolute(path: &[String], here: &[String]) -> Option<Names> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([here, rest].concat()),
        "super" => {
            let ups = path.iter().take_while(|name| *name == "super").count();
            let above = here.get(..here.len().checked_sub(ups)?)?;
            Some([above, &path[ups..]].concat())
        }
        _ => Some([here, path].concat()),
    }
}

/// Paths in expressions, types and patterns that name their crate or parent.
struct Paths<'a> {
    here: &'a [String],
    found: &'a mut BTreeSet<Names>,
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 && ["crate", "self", "super"].contains(&names[0].as_str()) {
            self.found.extend(absolute(&names, self.here));
        }
        syn::visit::visit_path(self, path);
    }
}

/// Returns the groups of nodes that reach each other.
fn circles_of(arrows: &BTreeMap<&str, BTreeSet<String>>) -> Vec<Names> {
    let reached = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(next) = open.pop() {
            for to in arrows.get(next.as_str()).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<String>> = arrows.keys().map(|name| (*name, reached(name))).collect();
    let mut circles = BTreeSet::new();
    for (name, reach) in &all {
        let circle: Names = reach.iter().filter(|other| all[other.as_str()].contains(*name)).cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Module {
        Module::of(&syn::parse_file(text).expect("Rust").items, &[], Path::new("."))
    }

    #[test]
    fn siblings_that_import_each_other_are_a_circle() {
        let module = parsed("mod a { use crate::b::B; } mod b { pub struct B; fn f() { crate::a::g() } }");
        assert_eq!(module.circles(), [["a", "b"]]);
    }

    #[test]
    fn a_re_export_counts_as_its_source() {
        let module = parsed("pub use b::B; mod a { use crate::B; } mod b { use super::a; }");
        assert_eq!(module.circles(), [["a", "b"]]);
    }

    #[test]
    fn a_child_may_use_its_parent_and_the_parent_its_child() {
        let module = parsed("mod a { use self::inner::I; pub struct A; mod inner { use super::A; pub struct I; } }");
        assert!(module.circles().is_empty());
    }

    #[test]
    fn a_test_module_is_left_out() {
        let module = parsed("mod a { use crate::b::B; } mod b { #[cfg(test)] mod tests { use crate::a::A; } }");
        assert!(module.circles().is_empty());
    }
}
