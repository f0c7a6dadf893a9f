#!/bin/bash
# Looks at the pages in a headless browser, where one is installed: everything is drawn, light and dark differ, and nothing is wider than
# a phone of 360 pixels. Usage: page.sh [PATH OF dptrain], dpbench beside it; KEEP=DIR keeps the pictures. Last line: N passed, N failed.
root=$(cd "${DP_ROOT:-$(dirname "$0")/../..}" && pwd)
dptrain=$(realpath "${1:-$root/build/dptrain}") dpbench=$(dirname "$(realpath "${1:-$root/build/dptrain}")")/dpbench
for b in chromium chromium-browser google-chrome google-chrome-stable chrome; do browser=$(command -v $b) && break; done
[ -n "$browser" ] || { echo "skipped: no headless browser (chromium) to look at the pages"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $1"; }
run() { timeout 60 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --user-data-dir="$work/profile" "$@" 2>/dev/null; }
run --dump-dom about:blank | grep -q '<html' || { echo "skipped: $browser does not run here"; exit 0; }

config=$root/tools/configs/mlp.ini
"$dpbench" imbalance "$config" --devices 3 --steps 10 --warmup 2 devices.threads=1 --html imbalance.html >out 2>&1 && ok || bad "imbalance"
"$dptrain" "$config" devices.use=cpu:0,cpu:1 run.epochs=2 run.log_every=2 run.report=1 run.dir=run >out 2>&1 && cp run/report.html report.html && ok || bad "report"

pages="imbalance report"
if [ "${DP_SCALE:-short}" = full ]; then
    pages="$pages ladder speed"
    "$dpbench" ladder "$config" --devices 2 --steps 10 --warmup 2 devices.threads=1 --html ladder.html >out 2>&1 && ok || bad "ladder"
    "$dpbench" speed "$config" --devices 1,2 --seconds 0.1 --html speed.html >out 2>&1 && ok || bad "speed"
fi

# The page in a frame of a phone's width, measured by a script of this test: width of the content, elements that stick out of every
# scrolling container, shapes that are drawn, colour of the ground.
measure() { # FILE WIDTH [flag]: "content-width sticking-out shapes ground"
    {
        echo '<!doctype html><title>-</title><body><iframe id="f" style="border:0;height:2000px;width:'"$2"'px" srcdoc="'
        sed 's/&/\&amp;/g; s/"/\&quot;/g' "$1"
        cat <<'HTML'
"></iframe><p id="measured"></p><script>
document.getElementById("f").onload = function () {
    var d = this.contentDocument, w = this.contentWindow, wide = 0, shapes = 0;
    d.querySelectorAll("body *").forEach(function (e) {
        if (e.closest(".scroll") && !e.matches(".scroll") || e.closest("svg svg") || e.closest("defs")) return;
        if (e.getBoundingClientRect().right > w.innerWidth + 0.5) wide++;
    });
    d.querySelectorAll("svg rect, svg polyline").forEach(function (e) { if (!e.closest("defs") && e.getBoundingClientRect().width > 0) shapes++; });
    document.getElementById("measured").textContent =
        "MEASURED " + d.documentElement.scrollWidth + " " + wide + " " + shapes + " " + w.getComputedStyle(d.body).backgroundColor.replace(/ /g, "") + ".";
};
</script></body>
HTML
    } >frame.html
    run --window-size=1400,900 ${3:-} --virtual-time-budget=5000 --dump-dom "file://$work/frame.html" | sed -n 's/.*MEASURED \([^.]*\)\..*/\1/p' | head -n 1
}
dark=--blink-settings=preferredColorScheme=0
for p in $pages; do
    [ -s $p.html ] || continue
    for width in 360 1200; do
        read -r content wide shapes ground <<<"$(measure $p.html $width)"
        [ "${content:-9999}" -le $width ] && [ "${wide:-1}" = 0 ] && ok || bad "$p at $width pixels: content of ${content:-?}, $wide elements stick out"
        [ "${shapes:-0}" -ge 2 ] && ok || bad "$p at $width pixels: ${shapes:-0} shapes drawn"
    done
    read -r _ _ _ night <<<"$(measure $p.html 360 $dark)"
    [ -n "$ground" ] && [ -n "$night" ] && [ "$ground" != "$night" ] && ok || bad "$p: ground is $ground in light and $night in dark"
    run --window-size=1200,2600 --screenshot="$work/$p-light.png" "file://$work/$p.html" >/dev/null
    run --window-size=1200,2600 $dark --screenshot="$work/$p-dark.png" "file://$work/$p.html" >/dev/null
    run --window-size=360,2600 --screenshot="$work/$p-phone.png" "file://$work/$p.html" >/dev/null
    for shot in light dark phone; do # a picture of one colour packs to a few kB
        [ "$(stat -c %s "$work/$p-$shot.png" 2>/dev/null || echo 0)" -gt 15000 ] && ok || bad "$p: the $shot picture is empty"
    done
    cmp -s $p-light.png $p-dark.png && bad "$p: light and dark look the same" || ok
done
[ -z "${KEEP:-}" ] || { mkdir -p "$KEEP" && cp ./*.png ./*.html "$KEEP"; }
echo "$passed passed, $failed failed"
[ $failed = 0 ]
