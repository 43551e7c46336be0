"""The page's style sheet and its one script. Caller: `page.py`.

Nothing is fetched: no font, image or library. The page is whole without the script, which only lights up a layer in
every chart while the pointer is on it in one.
"""

from __future__ import annotations

LIGHT = """--page:#f4f6f8;--card:#ffffff;--ink:#18212b;--soft:#566271;--line:#dfe4ea;--grid:#e8ecf0;--accent:#1d5fd1;
--good:#177a5b;--good-bg:#dff3ea;--bad:#b3261e;--bad-bg:#fbe3e1;--open:#7a5a00;--open-bg:#fbf0d2;
--i8:#d8efea;--i8-line:#2b9485;--f16:#fce8c8;--f16-line:#c27f14;--f32:#e7ebf0;--f32-line:#7d8b9d;--u8:#dce8fb;
--u8-line:#5a8bdc;--q0:#aab6c3;--q1:#e0b13c;--q2:#e2762a;--q3:#c62a56;--share:#c23a63;
--mma:#3a6bd0;--l2:#7a57cf;--dram:#c97c1f;--epilogue:#2b9485;--issue:#3f97ba;--fixed:#93a0af;--edge:#a3afbb"""
DARK = """--page:#0e1319;--card:#161d25;--ink:#e5ebf2;--soft:#9ba8b7;--line:#2b3541;--grid:#242d37;--accent:#7fb0ff;
--good:#6fdcb1;--good-bg:#12382c;--bad:#ff9a92;--bad-bg:#47191a;--open:#f0cd73;--open-bg:#3c3113;
--i8:#143833;--i8-line:#3bb09f;--f16:#43321a;--f16-line:#d99b3c;--f32:#29323d;--f32-line:#76859a;--u8:#1b2d4a;
--u8-line:#5e8fe2;--q0:#5f6d7c;--q1:#e3bb55;--q2:#f08a45;--q3:#f0567f;--share:#e0567f;
--mma:#5f8df0;--l2:#a084ee;--dram:#e09a43;--epilogue:#3bb09f;--issue:#58b3d6;--fixed:#75838f;--edge:#5d6b7b"""

CSS = (":root{color-scheme:light dark;" + LIGHT + "}@media (prefers-color-scheme:dark){:root{" + DARK + "}}"
       "@media print{:root{color-scheme:light;" + LIGHT + "}}" + """
*{box-sizing:border-box}
html{scroll-behavior:smooth;scroll-padding-top:56px}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main,header,nav>div,footer{max-width:1248px;margin:0 auto;padding:0 24px}
header{padding-top:32px;padding-bottom:8px}
h1{font-size:32px;line-height:1.15;margin:2px 0 6px;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:19px;margin:0 0 2px;letter-spacing:-.01em}
h3{font-size:14px;margin:0 0 8px}
p{margin:0 0 12px}
a{color:var(--accent)}
.over{color:var(--soft);font-size:13px;letter-spacing:.06em;text-transform:uppercase}
.soft,.lead{color:var(--soft)}
.lead{max-width:88ch;margin-bottom:16px}
.top{display:flex;gap:16px 32px;justify-content:space-between;align-items:flex-start;flex-wrap:wrap}
.verdict{border-radius:10px;padding:10px 16px;font-weight:600;max-width:440px}
.verdict small{display:block;font-weight:400;font-size:13px}
.good{color:var(--good);background:var(--good-bg)}
.bad{color:var(--bad);background:var(--bad-bg)}
.open{color:var(--open);background:var(--open-bg)}
nav{position:sticky;top:0;background:var(--page);border-bottom:1px solid var(--line);z-index:2}
nav>div{display:flex;gap:20px;overflow-x:auto;padding-top:10px;padding-bottom:10px}
nav a{color:var(--soft);text-decoration:none;white-space:nowrap;font-size:14px}
nav a:hover{color:var(--ink)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(152px,1fr));gap:10px;margin:18px 0 20px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:11px 14px}
.tile b{display:block;font-size:19px;line-height:1.25;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
.tile span{display:block;color:var(--soft);font-size:12.5px;line-height:1.4}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px 22px;margin:18px 0}
.gate{max-width:820px;margin-bottom:14px}.gate p{margin:8px 0 0 4px}
.warning{background:var(--open-bg);color:var(--open);border-radius:8px;padding:8px 14px;margin:8px 0}
.scroll{overflow-x:auto;margin:0 -6px;padding:0 6px}
.two{display:grid;grid-template-columns:minmax(0,780px) minmax(260px,1fr);gap:24px}
.two .chart{min-width:660px}
.wide .chart{min-width:900px}
svg{display:block;max-width:none}
td svg{display:inline-block;vertical-align:middle}
.chart{width:100%;height:auto}
.graph{margin:0 auto}
svg text{font-size:10.5px;fill:var(--ink)}
svg a{text-decoration:none;outline-offset:2px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--soft);margin:0 0 14px;padding:0;
list-style:none}
.legend li{display:flex;align-items:center;gap:7px}
.legend svg{flex:none}
.tick,svg .tick{fill:var(--soft);font-size:10.5px}
svg .axis{font-size:12px;fill:var(--soft)}
.grid{stroke:var(--grid);stroke-width:1}
.n rect:not(.mark){fill:var(--f32);stroke:var(--f32-line)}
.n .what{font-weight:600;font-size:10px}.n .shape,.n .number{fill:var(--soft);font-size:9.5px}
.n .number{text-anchor:end}
.end rect{fill:none;stroke:var(--soft)}
.n.kept rect:not(.mark){stroke-width:2}
.t-int8 rect:not(.mark),rect.t-int8{fill:var(--i8);stroke:var(--i8-line)}
.t-float16 rect:not(.mark),rect.t-float16{fill:var(--f16);stroke:var(--f16-line)}
.t-float32 rect:not(.mark),rect.t-float32{fill:var(--f32);stroke:var(--f32-line)}
.t-uint8 rect:not(.mark),rect.t-uint8{fill:var(--u8);stroke:var(--u8-line)}
.e{fill:none;stroke:var(--edge);stroke-width:1.4}
.q0{fill:var(--q0)}.q1{fill:var(--q1)}.q2{fill:var(--q2)}.q3{fill:var(--q3)}
.thread{fill:none;stroke:var(--edge);stroke-width:1}
.hit{fill:transparent}
.c:hover .hit{fill:var(--grid);fill-opacity:.6}
.share{fill:var(--share)}
.share.kept{fill:var(--f16);stroke:var(--f16-line)}
.band{stroke:var(--ink);stroke-opacity:.55;stroke-width:1}
.b-mma{fill:var(--mma)}.b-l2{fill:var(--l2)}.b-dram{fill:var(--dram)}.b-epilogue{fill:var(--epilogue)}
.b-issue{fill:var(--issue)}.b-fixed{fill:var(--fixed)}
.buffer{stroke-width:1}
.buffer.pinned{stroke-dasharray:4 3}
svg .buffer-name{font-size:9.5px;fill:var(--ink);pointer-events:none}
.floor{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:2 3}svg .floor-text{fill:var(--soft);font-size:11px}
.peak{stroke:var(--q3);stroke-width:1.5;stroke-dasharray:5 3}
svg .peak-text{fill:var(--q3);font-weight:600;font-size:12px}
.on rect:not(.mark):not(.hit),rect.on,.on circle{stroke:var(--accent);stroke-width:2.5}
.on .hit{fill:var(--grid)}
path.on{stroke:var(--accent);stroke-width:2.5}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px;vertical-align:bottom;white-space:nowrap}
th,td{padding:5px 10px;border-bottom:1px solid var(--line)}
tr>:first-child{padding-left:4px}
td.r,th.r{text-align:right;white-space:nowrap}
td.nowrap{white-space:nowrap}
td.name{overflow-wrap:anywhere;min-width:200px}
.two td:first-child{overflow-wrap:anywhere;line-height:1.35}
.scroll+p{margin-top:12px}.two+.scroll{margin-top:18px}td.why{min-width:300px}.gate td{white-space:nowrap}
section>p:last-child{margin-bottom:0}
h3.apart{margin:22px 0 4px}details{margin-top:10px}summary{cursor:pointer;color:var(--accent)}
.two .legend{margin:12px 0 0 54px}.two h3{margin-top:4px}.two table+h3{margin-top:22px}
.two td,.two th{padding-left:6px;padding-right:6px}
tfoot td{font-weight:600;border-bottom:0;border-top:2px solid var(--line)}
tr.on td,tr:hover td{background:var(--page)}
tr:target td{background:var(--open-bg)}
.chip{display:inline-block;border-radius:5px;padding:0 7px;font-size:12px;border:1px solid;line-height:1.5}
.chip.t-int8{background:var(--i8);border-color:var(--i8-line)}
.chip.t-float16{background:var(--f16);border-color:var(--f16-line)}
.chip.t-float32{background:var(--f32);border-color:var(--f32-line)}
.chip.t-uint8{background:var(--u8);border-color:var(--u8-line)}
.sw{width:12px;height:12px}
.track{fill:var(--grid)}.fill-good{fill:var(--good)}.fill-bad{fill:var(--bad)}.limit{stroke:var(--ink);stroke-width:2}
.saved{color:var(--good);font-size:12.5px}.lost{color:var(--bad);font-size:12.5px}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 18px;margin:0;font-size:13.5px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
footer{padding-top:8px;padding-bottom:40px;color:var(--soft);font-size:13px}
@media (max-width:1060px){.two{grid-template-columns:minmax(0,1fr)}}
@media (max-width:640px){main,header,nav>div,footer{padding-left:14px;padding-right:14px}section{padding:16px 14px}
.tiles{grid-template-columns:repeat(auto-fit,minmax(146px,1fr));gap:8px}.tile{padding:9px 11px}.tile b{font-size:18px}
h1{font-size:26px}}
@media print{nav{display:none}#graph{break-before:page}table{font-size:10px}th{font-size:9.5px}
th,td{padding:2px 5px}td.name{min-width:0}.chip{font-size:9px;padding:0 4px}
body{background:none;font-size:12px}section{border:0;padding:0;margin:20px 0}
.tile,.verdict,tr{break-inside:avoid}h2,.lead{break-after:avoid}.scroll{overflow:visible}a{color:inherit}
.chart,.graph,.two .chart,.wide .chart{min-width:0;max-width:100%;height:auto;break-inside:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""")

SCRIPT = """
(function(){
var groups={};
document.querySelectorAll('[data-s]').forEach(function(e){(groups[e.dataset.s]=groups[e.dataset.s]||[]).push(e)});
function light(event,on){
var e=event.target.closest&&event.target.closest('[data-s]');
if(e)groups[e.dataset.s].forEach(function(other){other.classList.toggle('on',on)});
}
document.addEventListener('pointerover',function(v){light(v,true)});
document.addEventListener('pointerout',function(v){light(v,false)});
document.addEventListener('focusin',function(v){light(v,true)});
document.addEventListener('focusout',function(v){light(v,false)});
})();
"""
