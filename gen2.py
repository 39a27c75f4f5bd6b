import sys, types, json, importlib
try:
    m=importlib.import_module('reasoning_gym.games.countdown')
except ImportError:
    sys.path.insert(0,'/tmp/rg')
    for n,p in (('reasoning_gym','/tmp/rg/reasoning_gym'),('reasoning_gym.games','/tmp/rg/reasoning_gym/games')):
        g=types.ModuleType(n); g.__path__=[p]; sys.modules[n]=g
    m=importlib.import_module('reasoning_gym.games.countdown')
from orchestrator.data.generate import TRAIN_SEED, VALIDATION_SEED, EVALUATION_SEED, NUM_TRAIN, NUM_VALIDATION, problems
from orchestrator.scoring import countdown
train=problems(NUM_TRAIN, TRAIN_SEED)
val=problems(NUM_VALIDATION, VALIDATION_SEED, train)
taken={(tuple(sorted(p.numbers)),p.target) for p in [*train,*val]}
d=m.CountdownDataset(m.CountdownConfig(seed=EVALUATION_SEED,size=1_000_000_000))
rows=[];i=0
while len(rows)<500:
    x=d[i]; i+=1
    n=x['metadata']['numbers']; t=x['metadata']['target']; k=(tuple(sorted(n)),t)
    if k in taken: continue
    taken.add(k)
    assert countdown.score(f"<answer>{x['answer']}</answer>",n,t)==1.0,(x['answer'],n,t)
    rows.append({'numbers':n,'target':t,'solution':x['answer']})
print(i,len(rows))
with open('/work/main/orchestrator/evaluate/tasks/countdown/held_out.jsonl','w') as f:
    for r in rows: f.write(json.dumps(r,separators=(',',':'))+'\n')
mine=[p for p in problems(500,EVALUATION_SEED,[*train,*val])]
print([ (list(p.numbers),p.target) for p in mine]==[(r['numbers'],r['target']) for r in rows])
