#include "report/page_assets.h"

namespace fsdp::report {

// Eight colours of like weight for runs (--r0...), each with dashes of its own; five greys and blues for memory.
const char* const kPageStyle = R"css(
:root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#59636e;--line:#d5dae0;--grid:#e6e9ed;
--r0:#0b5cad;--r1:#b5480c;--r2:#1a7340;--r3:#8a3ea8;--r4:#a11d3f;--r5:#00727f;--r6:#6f5a00;--r7:#4a4f57;
--bad:#b3261e;--odd:#8f5b00;--good:#1a7340;--m0:#2b5f94;--m1:#7fb2de;--m2:#4d8a6a;--m3:#e3b76a;--m4:#d9dde2}
@media(prefers-color-scheme:dark){:root{--ground:#101317;--card:#181c22;--ink:#e7ebef;--soft:#9aa5b1;--line:#343b44;
--grid:#262c34;--r0:#6cb2f5;--r1:#f39a5f;--r2:#62c98b;--r3:#cf9bea;--r4:#f58aa4;--r5:#57c8d4;--r6:#d8bf55;--r7:#b3bac3;
--bad:#ff8a80;--odd:#f0b959;--good:#62c98b;--m0:#5f98d1;--m1:#2d5379;--m2:#79b896;--m3:#8b6a2c;--m4:#39404a}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1160px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:36px 0 10px}h3{font-size:15px;margin:0}
p{margin:4px 0}.soft,small{color:var(--soft)}small{font-size:13px}
.grid{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.cards{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;min-width:0}
.card header{display:flex;align-items:center;gap:8px;flex-wrap:wrap}.card header h3{overflow-wrap:anywhere}
.badge{display:inline-block;min-width:22px;text-align:center;font-weight:700;border:2px solid;border-radius:6px;line-height:20px}
.state{margin-left:auto;font-size:13px;border:1px solid;border-radius:99px;padding:0 9px;white-space:nowrap}
.state.good{color:var(--good)}.state.bad{color:var(--bad)}.state.odd{color:var(--odd)}.state.calm{color:var(--soft)}
dl{display:grid;grid-template-columns:1fr 1fr;gap:8px 14px;margin:12px 0 4px}
dt{font-size:12.5px;color:var(--soft)}dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
dd small{font-weight:400}
.note{border-left:3px solid var(--odd);padding:2px 10px;margin:8px 0 0;font-size:14px}
.chart{display:block;width:100%;height:auto;margin-top:6px;touch-action:pan-y}.chart.compact.both{display:none}
.chart text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.chart .tick{fill:var(--soft);font-size:12.5px}.chart .label{font-weight:650}
.chart .grid{stroke:var(--grid);fill:none;display:inline}.chart .axis{stroke:var(--soft);fill:none}
.line,.faint,.thin,.since{fill:none;stroke:currentColor;stroke-linejoin:round}
.line{stroke-width:2.2}.faint{stroke-width:1;opacity:.35}.thin{stroke-width:1.2;opacity:.8}
.since{stroke-width:1;stroke-dasharray:2 4;opacity:.7}
.full{fill:currentColor;stroke:var(--card)}.hollow{fill:var(--card);stroke:currentColor;stroke-width:1.6}
.chart .label.r0,.r0{color:var(--r0)}.r1{color:var(--r1)}.r2{color:var(--r2)}.r3{color:var(--r3)}
.r4{color:var(--r4)}.r5{color:var(--r5)}.r6{color:var(--r6)}.r7{color:var(--r7)}.chart .label{fill:currentColor;paint-order:stroke;stroke:var(--card);stroke-width:4px}
.line.r1,.thin.r1{stroke-dasharray:9 4}.line.r2,.thin.r2{stroke-dasharray:3 3}.line.r3,.thin.r3{stroke-dasharray:11 4 3 4}
.line.r4,.thin.r4{stroke-dasharray:16 5}.line.r5,.thin.r5{stroke-dasharray:6 2 2 2 2 2}.line.r6,.thin.r6{stroke-dasharray:1 4}
.line.r7,.thin.r7{stroke-dasharray:14 3 3 3 3 3}
.sign{fill:none;stroke-width:1.8;stroke:var(--soft)}.sign.bad{stroke:var(--bad)}.sign.odd{stroke:var(--odd)}.sign.good{stroke:var(--good)}
.key{vertical-align:-2px;overflow:visible}
.signs{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 0;font-size:13.5px;color:var(--soft)}
.layer{stroke:none}.edge{fill:none;stroke:var(--card);stroke-width:1.2}.hatch{stroke:var(--card);stroke-width:1.6;opacity:.75}
.m0{fill:var(--m0);background:var(--m0)}.m1{fill:var(--m1);background:var(--m1)}.m2{fill:var(--m2);background:var(--m2)}
.m3{fill:var(--m3);background:var(--m3)}.m4{fill:var(--m4);background:var(--m4)}
.inside{paint-order:stroke;stroke:var(--card);stroke-width:3.5px}.peak{fill:none;stroke:var(--ink);stroke-width:1.4;stroke-dasharray:6 4}
.layers{list-style:none;margin:8px 0 0;padding:0;font-size:14px}.layers b{font-variant-numeric:tabular-nums}
.swatch{display:inline-block;width:16px;height:12px;margin-right:8px;border-radius:2px;vertical-align:-1px}
.swatch.hatched{background-image:repeating-linear-gradient(45deg,transparent 0 3px,var(--card) 3px 4.6px)}
.swatch.dashed{border-top:2px dashed var(--ink);height:0;border-radius:0;vertical-align:4px}
.run-line{margin-top:14px}.split{display:flex;height:26px;border-radius:5px;overflow:hidden;margin:6px 0 4px;gap:2px}
.split span{min-width:2px}.split .hatched{background-image:repeating-linear-gradient(45deg,transparent 0 5px,var(--card) 5px 7px)}
.wide-table{overflow-x:auto}table{border-collapse:collapse;font-size:14px;width:100%}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--grid);vertical-align:top}
.stack td:nth-child(-n+4){white-space:nowrap}
th{color:var(--soft);font-weight:600;white-space:nowrap}td.mono,code{font:13px ui-monospace,Menlo,Consolas,monospace}
td.mono{overflow-wrap:anywhere}td.key{white-space:nowrap}tr.differs td{font-weight:600}
details summary{cursor:pointer;color:var(--soft)}
pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0 12px;
padding:8px 10px;background:var(--ground);border-radius:6px}pre b{font-weight:700}
#tip{position:absolute;pointer-events:none;background:var(--card);color:var(--ink);border:1px solid var(--line);border-radius:8px;
box-shadow:0 4px 16px #0003;padding:7px 10px;font-size:13px;font-variant-numeric:tabular-nums;display:none;z-index:2;white-space:nowrap}
.pointer{stroke:var(--soft);stroke-dasharray:3 3}
footer{margin-top:36px;font-size:13.5px;color:var(--soft);overflow-wrap:anywhere}
@media(max-width:700px){.chart.wide{display:none}.chart.compact.both{display:block}main{padding:14px 12px 40px}.card{padding:12px}
.stack,.stack tbody{display:block}.stack td:nth-child(-n+4){white-space:normal}.stack tr{display:block;padding:6px 0;border-bottom:1px solid var(--grid)}.stack td{display:inline;border:0;padding-right:8px}.stack th{display:none}}
@media print{body{background:#fff}.card{break-inside:avoid}}
)css";

const char* const kPageScript = R"js(
(()=>{const tip=document.createElement('div');tip.id='tip';document.body.append(tip);
const short=v=>{const a=Math.abs(v);return a>=1e6||a&&a<1e-3?v.toExponential(2):a>=1000?Math.round(v).toLocaleString('en'):String(+v.toPrecision(4))};
const units={plain:short,percent:v=>(100*v).toPrecision(3)+'%',ms:v=>short(v)+' ms',
bytes:v=>{const u=['B','KiB','MiB','GiB','TiB'];let i=0;while(v>=1024&&i<4){v/=1024;i++}return v.toFixed(i?1:0)+' '+u[i]}};
for(const svg of document.querySelectorAll('svg.chart')){const d=svg.dataset,n=k=>+d[k];
const stepAt=x=>n('from')+(x-n('left'))/(n('right')-n('left'))*(n('to')-n('from'));
const valueAt=y=>{const p=(n('bottom')-y)/(n('bottom')-n('top'));return d.scale=='log'?n('low')*(n('high')/n('low'))**p:n('low')+p*(n('high')-n('low'))};
const lines=[...svg.querySelectorAll('[data-name]')].map(e=>({name:e.dataset.name,run:e.getAttribute('class').split(' ')[1]||'',
points:e.getAttribute('d').slice(1).split(/[ML]/).map(p=>p.split(' ').map(Number))}));
if(!lines.length)continue;
const rule=document.createElementNS('http://www.w3.org/2000/svg','path');rule.setAttribute('class','pointer');svg.append(rule);
const hide=()=>{tip.style.display='none';rule.setAttribute('d','')};
const show=e=>{const m=svg.getScreenCTM();if(!m)return;const x=(e.clientX-m.e)/m.a;
if(x<n('left')-6||x>n('right')+6){hide();return}
let at=null;const rows=[];
for(const l of lines){let best=l.points[0];for(const p of l.points)if(Math.abs(p[0]-x)<Math.abs(best[0]-x))best=p;
if(at===null||Math.abs(best[0]-x)<Math.abs(at-x))at=best[0];rows.push([l,best])}
rule.setAttribute('d','M'+at+' '+n('top')+'V'+n('bottom'));tip.replaceChildren();
const head=document.createElement('div');head.textContent='step '+Math.round(stepAt(at)).toLocaleString('en');tip.append(head);
for(const[l,p]of rows){if(Math.abs(p[0]-x)>40)continue;const r=document.createElement('div');r.className=l.run;
const s=Math.round(stepAt(p[0]));r.textContent=l.name+'  '+units[d.unit](valueAt(p[1]))+(p[0]==at?'':'  (step '+s.toLocaleString('en')+')');tip.append(r)}
tip.style.display='block';const w=tip.offsetWidth,left=e.pageX+16+w>scrollX+document.documentElement.clientWidth?e.pageX-w-16:e.pageX+16;
tip.style.left=Math.max(4,left)+'px';tip.style.top=e.pageY+14+'px'};
svg.addEventListener('pointermove',show);svg.addEventListener('pointerdown',show);svg.addEventListener('pointerleave',hide)}
})();
)js";

}  // namespace fsdp::report
