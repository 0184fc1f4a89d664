//! A figure as PNG, made from its SVG.

use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree, fontdb::Database},
};

/// Pixels for each unit of the SVG.
const PIXELS: f32 = 1.5;
/// The fonts that are taken for text, the first one that there is.
const FONTS: [&str; 4] = ["DejaVu Sans", "Liberation Sans", "Arial", "Helvetica"];

/// Draws an SVG. Its text needs a font of this machine.
///
/// # Errors
/// The machine has no font, or the SVG is none.
pub(crate) fn png(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut fonts = Database::new();
    fonts.load_system_fonts();
    let families: Vec<String> = fonts.faces().filter_map(|face| Some(face.families.first()?.0.clone())).collect();
    let known = FONTS.iter().map(|name| (*name).to_owned()).find(|name| families.contains(name));
    let Some(family) = known.or_else(|| families.first().cloned()) else {
        bail!("this machine has no font for the text of a PNG: install one, such as DejaVu, or write an .svg");
    };
    fonts.set_sans_serif_family(family.clone());
    let options = Options { font_family: family, fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("read the SVG")?;
    let size = tree.size().to_int_size().scale_by(PIXELS).context("no size")?;
    let mut pixels =
        Pixmap::new(size.width(), size.height()).ok_or_else(|| anyhow!("no memory for a picture of {size:?}"))?;
    resvg::render(&tree, Transform::from_scale(PIXELS, PIXELS), &mut pixels.as_mut());
    pixels.encode_png().context("encode the PNG")
}
